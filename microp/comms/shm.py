"""The transport over shared memory: tensors between ranks of one host go through mailboxes, others over TCP.

::

    sender                 mailbox                      receiver
    copy the tensor ─────► │ semaphore │ stamp │ data │
    post ────────────────►                              wait: spin briefly, then block
                                                        use the data without a copy

One segment holds the mailboxes of all links of a host. It has no name in any file system (the host's
first rank creates it, the others open it through that rank's descriptor), so it disappears with the ranks
even if they are killed. POSIX semaphores order memory accesses on every processor, including Arm.
The barrier before a step uses mailboxes without data and goes through the first rank; the ranks leave it
within microseconds of each other. Set-up and reductions go through gloo.

::

    h0   rank 0 ═══ rank 1        ═══ shared memory        the barrier: the ranks of a host meet at its first rank,
             └─┐                  ─── TCP (`TcpComms`)                  the first ranks of the hosts meet,
    h1       rank 2 ═══ rank 3                                          and let the others go
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor

from microp.comms.base import Inbox, Message, Outbox, mailbox_sizes, view_of
from microp.comms.hosts import Hosts
from microp.comms.tcp import BARRIER_TAG, TcpComms, check_fits
from microp.comms.waiting import TICK_S, Countdown, is_alive

LINE = 64  # bytes: a cache line, and the alignment at which matrix products give the same bits
STAMP = 32  # the offset of the stamp in the first line, after the semaphore

_libc = ctypes.CDLL(None, use_errno=True)
_quick = ctypes.PyDLL(None)  # calls that return at once: to let go of the interpreter takes longer than they do
_trywait, _post, _copy = _quick.sem_trywait, _quick.sem_post, _quick.memmove
_copy.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


class _Box(NamedTuple):
    """One mailbox as mapped by one rank."""

    semaphore: int  # the address
    stamp: Any  # a ctypes integer in the segment: the time of sending
    offset: int  # the offset of the data in the segment
    nbytes: int


class ShmComms(TcpComms):
    """A `TcpComms` that sends the messages of a step through shared memory, between ranks of one host."""

    def __init__(self, device: torch.device, timeout_s: float, group: Any, hosts: Hosts) -> None:
        super().__init__(device, timeout_s, group, hosts)
        self._boxes: dict[tuple[int, int, int], _Box] = {}
        self._pids: list[int] = []  # of the ranks
        host_of, mine = self._host_of, self._host_of[self.rank]
        self._near = [rank for rank, host in enumerate(host_of) if host == mine]
        self._first = self._near[0]
        self._meeting_ranks = sorted({host_of.index(host) for host in host_of})  # the first rank of each host
        self.is_one_host = self.stamps = len(self._meeting_ranks) == 1  # hosts have clocks of their own

    def expect(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        super().expect(message for message in messages if self._host_of[message.src] != self._host_of[message.dest])
        near = [message for message in messages if {message.src, message.dest} <= {*self._near}]
        for rank in self._near[1:]:
            for link in ((rank, self._first), (self._first, rank)):
                near.append(Message(*link, BARRIER_TAG, 0, BARRIER_TAG))
        sizes, offsets, total = mailbox_sizes(near), {}, 0
        for key, nbytes in sorted(sizes.items()):
            offsets[key] = total
            total += LINE + -(-nbytes // LINE) * LINE
        self._map(max(total, LINE), list(offsets.values()))
        boxes = {key: self._box(offset, sizes[key]) for key, offset in offsets.items()}
        self._boxes = {(src, dest, tag): boxes[src, dest, slot] for src, dest, tag, _, slot in near}

    def is_received(self, address: int) -> bool:
        in_segment = bool(self._boxes) and self._base <= address < self._base + len(self._segment)
        return in_segment or super().is_received(address)

    def _map(self, size: int, semaphores: list[int]) -> None:
        """Create the host's segment on its first rank and map it on all its ranks."""
        made = -1  # the segment's descriptor
        if self.rank == self._first:
            made = os.memfd_create("microp", os.MFD_CLOEXEC)
            os.ftruncate(made, size)
            self._open(made, size)
            for offset in semaphores:
                _libc.sem_init(ctypes.c_void_p(self._base + offset), 1, 0)
        cards = self.all_gather((os.getpid(), made))
        self._pids = [pid for pid, _ in cards]
        if self.rank != self._first:
            pid, theirs = cards[self._first]
            made = os.open(f"/proc/{pid}/fd/{theirs}", os.O_RDWR | os.O_CLOEXEC)
            self._open(made, size)
        self.all_gather(None)  # after it every rank has mapped the segment
        os.close(made)

    def _open(self, descriptor: int, size: int) -> None:
        self._segment = mmap.mmap(descriptor, size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._segment))

    def _box(self, offset: int, nbytes: int) -> _Box:
        stamp = ctypes.c_int64.from_buffer(self._segment, offset + STAMP)
        return _Box(self._base + offset, stamp, offset + LINE, nbytes)

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        box = self._boxes.get((self.rank, dest, tag))
        if box is None:
            return super().outbox(shape, dest, tag, dtype)
        return _Sender(box, self._data(box, shape, dtype))

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        box = self._boxes.get((src, self.rank, tag))
        if box is None:
            return super().inbox(shape, src, tag, dtype)
        return _Receiver(self, box, self._data(box, shape, dtype), src)

    def _meet(self) -> None:
        others = self._near[1:] if self.rank == self._first else [self._first]
        come = [self._boxes[rank, self.rank, BARRIER_TAG].semaphore for rank in others]
        go = [self._boxes[self.rank, rank, BARRIER_TAG].semaphore for rank in others]
        if self.rank != self._first:
            _post(ctypes.c_void_p(go[0]))
        for rank, semaphore in zip(others, come, strict=True):
            self.take(ctypes.c_void_p(semaphore), rank)
        if self.rank == self._first:
            super()._meet()  # with the first ranks of the other hosts
            for semaphore in go:
                _post(ctypes.c_void_p(semaphore))

    def _data(self, box: _Box, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the mailbox's data as a tensor."""
        check_fits(shape, dtype, box.nbytes)
        mailbox = torch.frombuffer(self._segment, dtype=torch.uint8, count=box.nbytes, offset=box.offset)
        return view_of(mailbox, shape, dtype)

    def take(self, semaphore: ctypes.c_void_p, src: int) -> None:
        """Wait until rank `src` has posted the semaphore of a mailbox.

        Raises:
            TimeoutError: it was not posted within `timeout_s`.
            ConnectionError: the sender's process has ended.
        """
        self._patience.has_waited = True
        if spin_ns := self._patience.spin_ns:
            end = perf_counter_ns() + spin_ns
            while perf_counter_ns() < end:
                if _trywait(semaphore) == 0:
                    return
        self._block(semaphore, src)

    def _block(self, semaphore: ctypes.c_void_p, src: int) -> None:
        countdown = Countdown(self.timeout_s)
        while (left := countdown.tick()) > 0:
            until = time.time() + min(left, TICK_S)
            moment = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))  # a timespec: seconds, nanoseconds
            if _libc.sem_timedwait(semaphore, ctypes.byref(moment)) == 0:
                return
            if ctypes.get_errno() not in (errno.ETIMEDOUT, errno.EINTR):
                raise OSError(ctypes.get_errno(), "sem_timedwait")
            if not is_alive(self._pids[src]):
                raise ConnectionError(f"lost rank {src}: its process {self._pids[src]} has ended")
        raise TimeoutError(f"waited {self.timeout_s:g} s for rank {src}")


class _Sender:
    """The sender's side of a mailbox."""

    finish = None  # `send` has copied the tensor

    def __init__(self, box: _Box, data: Tensor) -> None:
        self._data, self._stamp = data, box.stamp
        self._address, self._nbytes = data.data_ptr(), data.nbytes
        self._semaphore = ctypes.c_void_p(box.semaphore)

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        if tensor.is_contiguous():
            _copy(self._address, tensor.data_ptr(), self._nbytes)
        else:
            self._data.copy_(tensor)
        self._stamp.value = leaves_ns
        _post(self._semaphore)


class _Receiver:
    """The receiver's side of a mailbox, which holds the tensor once the semaphore has been posted."""

    post = None  # the sender writes without a posted receive

    def __init__(self, comms: ShmComms, box: _Box, data: Tensor, src: int) -> None:
        self._comms, self._data, self._stamp, self._src = comms, data, box.stamp, src
        self._semaphore = ctypes.c_void_p(box.semaphore)

    def wait(self) -> Tensor:
        if _trywait(self._semaphore) != 0:
            self._comms.take(self._semaphore, self._src)
        return self._data

    @property
    def sent_ns(self) -> int:
        """The `perf_counter_ns` at which the tensor was sent, valid after `wait()`."""
        return int(self._stamp.value)
