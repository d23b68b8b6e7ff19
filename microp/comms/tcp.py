"""The transport over TCP without threads: messages of a step go through sockets that the waiting rank itself reads.

::

    rank 0                                          rank 1
    send: what the system takes at once ──────────► computes
    computes                                        waits: reads what has come, for any of its actions,
    send, wait: the rest of it ───────────────────►        sends the rest of its own messages

gloo has threads that move the bytes; on a machine whose cores all compute, a message waits until they get a core. Here
only the rank's own thread does, so nothing moves while it computes but what the system holds. A message above `LARGEST`
goes through gloo, since the system may not hold it. No order of sends and waits can block: a send never waits, and
every wait also sends. The schedule guarantees that a mailbox is free before its next message is sent (`Message.slot`).
The barrier before a step goes through these connections as well; set-up and reductions go through gloo.
"""

from __future__ import annotations

import ctypes
import select
from collections.abc import Callable, Collection, Iterable, Sequence
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from microp.comms.base import Inbox, Message, Outbox, bytes_of, view_of
from microp.comms.connection import Connection, Mailbox, Unsent, header, open_connections
from microp.comms.group import GroupComms
from microp.comms.hosts import Hosts, listening_address
from microp.comms.waiting import TICK_S, Countdown, Patience

LARGEST = 256 * 1024  # bytes of a message that does not go through gloo
BARRIER_TAG = -1  # those of actions are not negative
_MEETING = header(BARRIER_TAG, 0)


class TcpComms(GroupComms):
    """A `GroupComms` that sends the messages of a step, and those of the barrier, through its own TCP connections."""

    def __init__(self, device: torch.device, timeout_s: float, group: Any, hosts: Hosts) -> None:
        super().__init__(device, timeout_s, group, hosts)
        self._hosts = hosts
        self._host_of = [hosts.of[rank] for rank in dist.get_process_group_ranks(self.group)]
        self._patience = Patience(hosts.of.count(self._host_of[self.rank]))
        self._meeting_ranks = list(range(self.world_size))  # those that the barrier needs a connection between
        self._connected: set[tuple[int, int]] = set()  # the pairs of ranks that have a connection, of all ranks
        self._connections: dict[int, Connection] = {}  # of this rank
        self._sizes: dict[tuple[int, int], int] = {}  # (destination, tag) -> the bytes of the mailbox there
        self._mailboxes: dict[tuple[int, int], Mailbox] = {}  # (source, tag) -> the mailbox here
        self._meets_here = False

    def expect(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        super().expect(messages)
        small = [message for message in messages if message.nbytes <= LARGEST]
        first, *others = self._meeting_ranks
        pairs = {(first, rank) for rank in others}
        pairs |= {(min(message.src, message.dest), max(message.src, message.dest)) for message in small}
        if pairs - self._connected:
            self._connect(pairs - self._connected)
        self._sizes = {(message.dest, message.tag): message.nbytes for message in small if message.src == self.rank}
        mine = {(message.src, message.tag): message.nbytes for message in small if message.dest == self.rank}
        self._mailboxes = {key: Mailbox(self._buffers[key].numpy().data[:size]) for key, size in mine.items()}
        for rank, connection in self._connections.items():
            self._mailboxes[rank, BARRIER_TAG] = Mailbox(memoryview(b""))
            connection.mailboxes = {tag: box for (src, tag), box in self._mailboxes.items() if src == rank}
        if pairs:
            self.all_gather(None)  # after it every rank has its mailboxes
        self._meets_here = True

    def _connect(self, pairs: set[tuple[int, int]]) -> None:
        """Make the connections between these pairs of ranks."""
        peers = {rank for pair in pairs if self.rank in pair for rank in pair} - {self.rank}
        address = listening_address(self._hosts)
        self._connections |= open_connections(self.rank, peers, self.names, address, self.all_gather, self.timeout_s)
        self._connected |= pairs

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        size = self._sizes.get((dest, tag))
        if size is None:
            return super().outbox(shape, dest, tag, dtype)
        check_fits(shape, dtype, size)
        return _Sender(self, dest, self._connections[dest], tag, bytes_of(shape, dtype))

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        box = self._mailboxes.get((src, tag))
        if box is None:
            return super().inbox(shape, src, tag, dtype)
        check_fits(shape, dtype, box.place.nbytes)
        return _Receiver(self, src, box, view_of(self._buffers[src, tag], shape, dtype))

    def receive(self, box: Mailbox, src: int) -> int:
        """Wait until the message from rank `src` is in its mailbox; return its size. Raises like `wait_until`."""
        self._push()
        if box.came is None:
            self.wait_until(lambda: box.came is not None, src)
        came, box.came = box.came, None
        return came or 0

    def wait_until(
        self, is_done: Callable[[], bool], peer: int, connections: Collection[Connection] | None = None
    ) -> None:
        """Read what comes and send what is left until `is_done`, for which rank `peer` has to do something.

        Args:
            connections: the ones that are read; None: all.

        Raises:
            TimeoutError: it did not within `timeout_s`.
            ConnectionError: a rank has ended.
        """
        connection, spin_end = self._connections[peer], perf_counter_ns() + self._patience.spin_ns
        self._patience.has_waited = True
        while True:
            connection.read()
            self._push()
            if is_done():
                return
            if perf_counter_ns() >= spin_end:
                break
        countdown = Countdown(self.timeout_s)
        while not is_done():
            if (left := countdown.tick()) <= 0:
                raise TimeoutError(f"waited {self.timeout_s:g} s for {self.names[peer]}")
            self._sleep(min(left, TICK_S), self._connections.values() if connections is None else connections)

    def _push(self) -> None:
        for connection in self._connections.values():
            if connection.has_unsent:
                connection.push()

    def _sleep(self, seconds: float, connections: Collection[Connection]) -> None:
        """Sleep until something has come or can be sent, at most this long; read and send it."""
        poller, by_number = select.poll(), {}
        for connection in connections:
            by_number[connection.fileno()] = connection
            poller.register(connection, select.POLLIN | (select.POLLOUT if connection.has_unsent else 0))
        for number, _ in poller.poll(seconds * 1e3):
            by_number[number].read()
        self._push()

    def barrier(self) -> None:
        if not self._meets_here:
            super().barrier()
            return
        self._patience.look()
        self._meet()
        self._patience.has_waited = False  # for a message of the step that begins
        if self.replica_group is not None:  # every pipeline has met, so meeting per column completes the barrier
            self.replica_group.barrier()

    def _meet(self) -> None:
        """Return when all `_meeting_ranks` have called this: the first one waits for the others and lets them go."""
        first, *others = self._meeting_ranks
        if self.rank == first:
            for rank in others:
                self.receive(self._mailboxes[rank, BARRIER_TAG], rank)
            for rank in others:
                self._connections[rank].send(_MEETING, b"", None)
        else:
            self._connections[first].send(_MEETING, b"", None)
            # Only the first rank is listened to: a rank that was let go sooner may have ended since. If one is lost
            # before it came here, the first rank sees it and ends.
            go = self._mailboxes[first, BARRIER_TAG]
            self.wait_until(lambda: go.came is not None, first, [self._connections[first]])
            go.came = None

    def close(self) -> None:
        connections = list(self._connections.values())
        if isinstance(self.replica_group, TcpComms):
            connections += self.replica_group._connections.values()
        super().close()  # when it returns, every rank has come to its end and uses no connection any more
        for connection in connections:
            connection.close()


def check_fits(shape: Sequence[int], dtype: torch.dtype, nbytes: int) -> None:
    """Raise ConnectionError if a tensor is larger than its mailbox of `nbytes` bytes."""
    if bytes_of(shape, dtype) > nbytes:
        raise ConnectionError(f"{dtype} {list(shape)} does not fit into a mailbox of {nbytes} bytes")


class _Sender:
    """The sender's side of a message."""

    def __init__(self, comms: TcpComms, dest: int, connection: Connection, tag: int, nbytes: int) -> None:
        self._comms, self._dest, self._connection = comms, dest, connection
        self._header, self._bytes = header(tag, nbytes), ctypes.c_char * nbytes
        self._unsent: Unsent | None = None

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        del leaves_ns  # messages have no stamp
        tensor = tensor.contiguous()
        data = self._bytes.from_address(tensor.data_ptr())
        self._unsent = self._connection.send(self._header, data, tensor)

    def finish(self) -> None:
        if (unsent := self._unsent) is not None:
            self._unsent = None
            self._comms.wait_until(lambda: not unsent.rest, self._dest)


class _Receiver:
    """The receiver's side of a mailbox."""

    post = None  # the bytes come into the mailbox in any wait of this rank

    def __init__(self, comms: TcpComms, src: int, box: Mailbox, tensor: Tensor) -> None:
        self._comms, self._src, self._box, self._tensor = comms, src, box, tensor

    def wait(self) -> Tensor:
        came, nbytes = self._comms.receive(self._box, self._src), self._tensor.nbytes
        if came != nbytes:
            raise ConnectionError(
                f"{self._comms.names[self._src]} sent {came} bytes, not the {nbytes} of shape "
                f"{list(self._tensor.shape)}"
            )
        return self._tensor
