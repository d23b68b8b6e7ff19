"""The transport between processes over a `torch.distributed` process group: gloo, and what NCCL has in common.

gloo's own time-outs go by the clock, which Ctrl-Z does not stop, and a wait that is over too early cannot be begun
again: gloo closes its connections. So gloo itself waits for ever, and a thread counts the time in which this process
ran (`Watchdog`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from microp.comms.base import (
    Comms,
    Inbox,
    Message,
    Outbox,
    Pending,
    PostedReceive,
    PostedSend,
    Sum,
    check_reduction,
)
from microp.comms.countdown import TICK_S, Countdown
from microp.comms.hosts import Hosts

NEVER = timedelta(days=365)  # gloo's own time-out
_NOBODY_S = 2**31 - 1  # a tag that no message has
_SIZE = 8  # bytes of the number that says how long a text is
_AT_ONCE = 248  # bytes of a text that every rank takes in the first of at most two exchanges
_REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


class GroupComms(Comms):
    """The transport between processes over a `torch.distributed` process group.

    Args:
        device: the device of this rank's tensors.
        timeout_s: the longest wait for a peer, in seconds.
        group: the process group of the ranks; None for all processes.
        hosts: the hosts of all processes, which messages name if they are several.
    """

    def __init__(self, device: torch.device, timeout_s: float, group: Any = None, hosts: Hosts | None = None) -> None:
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.device, self.timeout_s = device, timeout_s
        self.group: Any = group or dist.group.WORLD
        self.names = [f"rank {rank}" for rank in range(self.world_size)]
        if hosts and hosts.are_several:
            self.names = [hosts.rank_text(rank) for rank in dist.get_process_group_ranks(self.group)]
        self._watchdog = Watchdog(self.group, timeout_s)
        self._pool: list[Tensor] = []
        self._buffers: dict[tuple[int, int], Tensor] = {}  # (source, tag) -> the receive buffer

    def expect(self, messages: Iterable[Message]) -> None:
        """Allocate the receive buffers of a step, one per mailbox of the schedule."""
        mine = [message for message in messages if message.dest == self.rank]
        sizes: dict[tuple[int, int], int] = {}
        for message in mine:
            sizes[message.src, message.slot] = max(message.nbytes, sizes.get((message.src, message.slot), 0))
        pool = {key: torch.empty(nbytes, dtype=torch.uint8) for key, nbytes in sizes.items()}
        self._pool = list(pool.values())
        self._buffers = {(message.src, message.tag): pool[message.src, message.slot] for message in mine}

    def is_received(self, address: int) -> bool:
        return any(buffer.data_ptr() <= address < buffer.data_ptr() + buffer.nbytes for buffer in self._pool)

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        group, name = self.group, self.names[dest]

        def start(tensor: Tensor) -> Pending:
            tensor = tensor.contiguous()
            try:
                work = group.send([tensor], dest, tag)
            except RuntimeError as error:  # the connection has been closed already
                raise peer_error(error, self.timeout_s, name) from error
            return _Transfer(self, work, tensor, name)

        return PostedSend(start)

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        """Return an inbox that receives into the buffer from `expect`; the sender checks the size, so no canary."""
        buffer, group, name = self._buffers.get((src, tag)), self.group, self.names[src]
        if buffer is None:
            return super().inbox(shape, src, tag, dtype)
        tensor = buffer[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(*shape)

        def start() -> Pending:
            try:
                work = group.recv([tensor], src, tag)
            except RuntimeError as error:
                raise peer_error(error, self.timeout_s, name) from error
            return _Transfer(self, work, tensor, name)

        return PostedReceive(start)

    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        tensor = tensor.contiguous()
        with in_our_words(self.timeout_s, self.names[dest]):  # the connection may have been closed already
            work = dist.isend(tensor, group=self.group, tag=tag, group_dst=dest)
        return _Transfer(self, work, tensor, self.names[dest])

    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        canary = _Canary(tensor)
        with in_our_words(self.timeout_s, self.names[src]):
            work = dist.irecv(tensor, group=self.group, tag=tag, group_src=src)
        return _Transfer(self, work, tensor, self.names[src], canary)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        check_reduction(op)
        with in_our_words(self.timeout_s, "another rank"), self.waiting():
            dist.all_reduce(tensor, _REDUCE[op], group=self.group)
        return tensor

    def iall_reduce(self, tensor: Tensor) -> Sum:
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return _Sum(self, work, tensor, self.names[(self.rank + 1) % self.world_size])

    def all_gather(self, value: Any) -> list[Any]:
        text = json.dumps(value).encode()
        found = self._gather_bytes(text, _AT_ONCE)
        longest = max(int.from_bytes(each[:_SIZE], "little") for each in found)
        if longest > _AT_ONCE:  # every rank sees this
            found = self._gather_bytes(text, longest)
        return [json.loads(each[_SIZE : _SIZE + int.from_bytes(each[:_SIZE], "little")]) for each in found]

    def _gather_bytes(self, text: bytes, length: int) -> list[bytes]:
        """Return of each rank the size of its text in _SIZE bytes, and at most `length` bytes of the text."""
        framed = len(text).to_bytes(_SIZE, "little") + text[:length].ljust(length)
        own = torch.frombuffer(bytearray(framed), dtype=torch.uint8).to(self.device)
        every = [torch.empty_like(own) for _ in range(self.world_size)]
        with in_our_words(self.timeout_s, "another rank"), self.waiting():
            dist.all_gather(every, own, group=self.group)
        return [each.cpu().numpy().tobytes() for each in every]

    def barrier(self) -> None:
        with in_our_words(self.timeout_s, "another rank"), self.waiting():
            dist.barrier()

    def waiting(self, peer: str = "another rank") -> AbstractContextManager[Countdown]:
        return self._watchdog.watch(peer)

    def close(self) -> None:
        self.barrier()  # no rank closes a connection that another rank still uses
        # Dropping the groups ends their threads here, and not when the interpreter exits.
        if isinstance(self.replica_group, GroupComms):
            self.replica_group.drop()
        self.drop()
        self.replica_group = None
        dist.destroy_process_group()

    def drop(self) -> None:
        """Forget the group."""
        self._watchdog.close()
        self.group = None


class Watchdog:
    """Ends waits over gloo after a time-out, which is counted in time in which this process ran.

    Waits are over `group` or over the group of all processes.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        self._groups, self._timeout_s = [group, dist.group.WORLD], timeout_s
        self._waits: dict[int, Countdown] = {}  # by their ids; threads may wait at the same time
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self, peer: str) -> Iterator[Countdown]:
        """Yield the countdown of a wait for `peer` that begins. Raises TimeoutError if it ends before the wait does."""
        countdown = Countdown(self._timeout_s)
        self._waits[id(countdown)] = countdown
        try:
            yield countdown
        except RuntimeError:
            if countdown.is_over:
                raise TimeoutError(f"waited {self._timeout_s:g} s for {peer}") from None
            raise
        finally:
            del self._waits[id(countdown)]

    def close(self) -> None:
        """End the thread, and forget the groups."""
        self._over.set()
        self._thread.join()
        self._groups.clear()

    def _look(self) -> None:
        while not self._over.wait(min(TICK_S, self._timeout_s / 4)):
            for countdown in list(self._waits.values()):
                if countdown.tick() <= 0:
                    self._close_connections()

    def _close_connections(self) -> None:
        """Let a receive time out, after which gloo closes all connections of the group: each wait for them fails."""
        for group in self._groups:
            with suppress(RuntimeError, ValueError):  # a group of one rank has no connection
                peer = (group.rank() + 1) % group.size()
                group.recv([torch.empty(1)], peer, _NOBODY_S).wait(timedelta(milliseconds=1))


class _Canary:
    """Detects a message that was shorter than its buffer, for which gloo reports no error.

    The buffer's last element holds a signalling NaN before the transfer, and a complete
    message overwrites it. (A message that ends in exactly these bits is refused. Elements of
    less than 4 bytes have too few bits for a distinct pattern and are not checked.)
    """

    PATTERN = torch.frombuffer(bytearray(b"microp\xf4\x7f"), dtype=torch.uint8)

    def __init__(self, buffer: Tensor) -> None:
        size = buffer.element_size()
        self._tail: Tensor | None = None
        if buffer.numel() and size >= 4:
            self._tail = buffer.view(-1)[-1:].view(torch.uint8)
            self._tail.copy_(self.PATTERN[-size:])

    def is_unwritten(self) -> bool:
        """Return whether the last element has not been overwritten."""
        return self._tail is not None and torch.equal(self._tail, self.PATTERN[-len(self._tail) :])


@contextmanager
def in_our_words(timeout_s: float, peer: str) -> Iterator[None]:
    """Raise TimeoutError and ConnectionError for the RuntimeError of torch, whose text names a file of gloo's."""
    try:
        yield
    except RuntimeError as error:
        raise peer_error(error, timeout_s, peer) from error


def peer_error(error: BaseException, timeout_s: float, peer: str) -> TimeoutError | ConnectionError:
    """Return the TimeoutError or ConnectionError that an error of torch.distributed stands for."""
    if "imed out" in str(error) or "timeout" in str(error):
        return TimeoutError(f"waited {timeout_s:g} s for {peer}")
    return ConnectionError(f"lost {peer}: the connection was closed")


class _Transfer:
    """A torch.distributed transfer; keeps its tensor alive, as gloo requires."""

    def __init__(self, comms: GroupComms, work: Any, tensor: Tensor, peer: str, canary: _Canary | None = None) -> None:
        self._comms, self._work, self._tensor, self._peer, self._canary = comms, work, tensor, peer, canary

    def wait(self) -> Tensor:
        with in_our_words(self._comms.timeout_s, self._peer), self._comms.waiting(self._peer):
            self._work.wait(NEVER)
        if self._canary is not None and self._canary.is_unwritten():
            raise ConnectionError(
                f"{self._peer} sent fewer bytes than the {self._tensor.nbytes} of shape {list(self._tensor.shape)}"
            )
        return self._tensor


class _Sum(_Transfer):
    """A torch.distributed reduction, which may complete long before `wait()` is called."""

    def __init__(self, comms: GroupComms, work: Any, tensor: Tensor, peer: str) -> None:
        super().__init__(comms, work, tensor, peer)
        self.ended_ns = 0
        work.get_future().then(self._stamp)

    def _stamp(self, _: Any) -> None:
        self.ended_ns = perf_counter_ns()

    def wait(self) -> Tensor:
        tensor = super().wait()
        if not self.ended_ns:  # another thread writes the stamp, perhaps later
            self.ended_ns = perf_counter_ns()
        return tensor
