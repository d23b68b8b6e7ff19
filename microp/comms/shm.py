"""Ranks of one host: tensors go through mailboxes in shared memory.

::

    sender                 mailbox                      receiver
    copy the tensor ─────► │ semaphore │ stamp │ data │
    post ────────────────►                              wait: spin briefly, then block
                                                        use the data where it lies

One segment holds the mailboxes of all links. It has no name in any file system (rank 0
makes it, the others open it through rank 0's descriptor), so nothing can be left behind,
whatever kills a rank. POSIX semaphores order the memory on every processor, Arm included.
Ranks meet before a step through mailboxes of no bytes, by way of rank 0, and so within
microseconds of each other. What else is not a step's message (set-up, reductions) goes through gloo.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from microp.comms.base import Inbox, Message, Outbox, Pending
from microp.comms.group import GroupComms

LINE = 64  # bytes: a cache line, and the alignment at which matrix products give the same bits
STAMP = 32  # where in the first line the stamp lies, after the semaphore
SPIN_NS = 2_000_000  # a wait that ends within this never sleeps; only where every rank has a core
_MEET = -1  # the tag of the mailboxes through which ranks meet
LOOK_S = 1.0  # how often a blocked wait looks whether its peer is alive

_libc = ctypes.CDLL(None, use_errno=True)
_trywait, _post = _libc.sem_trywait, _libc.sem_post


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Box(NamedTuple):
    """One mailbox as one rank sees it."""

    semaphore: int  # its address
    stamp: Any  # a ctypes integer in the segment: when the tensor was sent
    offset: int  # of the data, in the segment
    nbytes: int


class ShmComms(GroupComms):
    """`GroupComms` whose step messages go through shared memory."""

    stamps = True

    def __init__(self, device: torch.device, timeout_s: float, group: Any = None) -> None:
        super().__init__("gloo", device, timeout_s, group)
        self._boxes: dict[tuple[int, int, int], _Box] = {}
        self._pids = self.all_gather(os.getpid())
        self._spin_ns = SPIN_NS if dist.get_world_size() <= len(os.sched_getaffinity(0)) else 0

    def expect(self, messages: Iterable[Message]) -> None:
        meeting = [
            Message(*ends, _MEET, 0, _MEET) for rank in range(1, self.world_size) for ends in ((rank, 0), (0, rank))
        ]
        messages = [*messages, *meeting]
        sizes: dict[tuple[int, int, int], int] = {}
        for message in messages:
            key = (message.src, message.dest, message.slot)
            sizes[key] = max(sizes.get(key, 0), message.nbytes)
        offsets, total = {}, 0
        for key, nbytes in sorted(sizes.items()):
            offsets[key] = total
            total += LINE + -(-nbytes // LINE) * LINE
        self._map(max(total, LINE), list(offsets.values()))
        boxes = {key: self._box(offset, sizes[key]) for key, offset in offsets.items()}
        self._boxes = {(m.src, m.dest, m.tag): boxes[m.src, m.dest, m.slot] for m in messages}

    def _map(self, size: int, semaphores: list[int]) -> None:
        """Make the segment on rank 0, map it on all."""
        descriptor = -1
        if self.rank == 0:
            descriptor = os.memfd_create("microp", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        theirs = self.all_gather(descriptor)[0]
        if self.rank != 0:
            descriptor = os.open(f"/proc/{self._pids[0]}/fd/{theirs}", os.O_RDWR | os.O_CLOEXEC)
        self._segment = mmap.mmap(descriptor, size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._segment))
        if self.rank == 0:
            for offset in semaphores:
                _libc.sem_init(ctypes.c_void_p(self._base + offset), 1, 0)
        self.barrier()  # every rank has mapped it, and every semaphore is there
        os.close(descriptor)

    def _box(self, offset: int, nbytes: int) -> _Box:
        stamp = ctypes.c_int64.from_buffer(self._segment, offset + STAMP)
        return _Box(self._base + offset, stamp, offset + LINE, nbytes)

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        box = self._boxes[self.rank, dest, tag]
        return _Drop(box, self._data(box, shape, dtype))

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        box = self._boxes[src, self.rank, tag]
        return _Mail(self, box, self._data(box, shape, dtype), src)

    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        if (self.rank, dest, tag) not in self._boxes:
            return super().isend_tensor(tensor, dest, tag)
        self.outbox(tensor.shape, dest, tag, tensor.dtype).send(tensor)
        return _Copied(tensor)

    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        if (src, self.rank, tag) not in self._boxes:
            return super().irecv_tensor(shape, src, tag, dtype)
        return self.inbox(shape, src, tag, dtype)

    def barrier(self) -> None:
        if not self._boxes:
            super().barrier()
            return
        others = range(1, self.world_size) if self.rank == 0 else [0]
        come = [self._boxes[rank, self.rank, _MEET].semaphore for rank in others]
        go = [self._boxes[self.rank, rank, _MEET].semaphore for rank in others]
        if self.rank != 0:
            _post(ctypes.c_void_p(go[0]))
        for rank, semaphore in zip(others, come, strict=True):
            self.take(ctypes.c_void_p(semaphore), rank)
        if self.rank == 0:
            for semaphore in go:
                _post(ctypes.c_void_p(semaphore))
        if self.across is not None:  # each column comes from rows that are complete
            self.across.barrier()

    def _data(self, box: _Box, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The mailbox's data as a tensor."""
        count = torch.Size(shape).numel()
        if count * dtype.itemsize > box.nbytes:
            raise ConnectionError(f"{dtype} {list(shape)} does not fit into a mailbox of {box.nbytes} bytes")
        return torch.frombuffer(self._segment, dtype=dtype, count=count, offset=box.offset).view(*shape)

    def take(self, semaphore: ctypes.c_void_p, src: int) -> None:
        """Wait until a mailbox has been posted.

        Raises:
            TimeoutError: it was not within `timeout_s`.
            ConnectionError: the sender is gone.
        """
        if self._spin_ns:
            end = perf_counter_ns() + self._spin_ns
            while perf_counter_ns() < end:
                if _trywait(semaphore) == 0:
                    return
        self._block(semaphore, src)

    def _block(self, semaphore: ctypes.c_void_p, src: int) -> None:
        give_up = time.monotonic() + self.timeout_s
        while (left := give_up - time.monotonic()) > 0:
            until = time.time() + min(left, LOOK_S)
            moment = _Timespec(int(until), int(until % 1 * 1e9))
            if _libc.sem_timedwait(semaphore, ctypes.byref(moment)) == 0:
                return
            if ctypes.get_errno() not in (errno.ETIMEDOUT, errno.EINTR):
                raise OSError(ctypes.get_errno(), "sem_timedwait")
            if not is_alive(self._pids[src]):
                raise ConnectionError(f"lost rank {src}: its process {self._pids[src]} is gone")
        raise TimeoutError(f"waited {self.timeout_s:g} s for rank {src}")


def is_alive(pid: int) -> bool:
    """Running, and not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone, or gone between opening and reading
        return False


class _Copied(NamedTuple):
    """A send that is over: the tensor has been copied."""

    tensor: Tensor

    def wait(self) -> Tensor:
        return self.tensor


class _Drop:
    """The sender's side of a mailbox."""

    finish = None  # the tensor has been copied

    def __init__(self, box: _Box, data: Tensor) -> None:
        self._data, self._stamp = data, box.stamp
        self._semaphore = ctypes.c_void_p(box.semaphore)

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        self._data.copy_(tensor)
        self._stamp.value = leaves_ns or perf_counter_ns()
        _post(self._semaphore)


class _Mail:
    """The receiver's side: the tensor lies in the mailbox once that has been posted."""

    post = None  # nothing has to be started

    def __init__(self, comms: ShmComms, box: _Box, data: Tensor, src: int) -> None:
        self._comms, self._data, self._stamp, self._src = comms, data, box.stamp, src
        self._semaphore = ctypes.c_void_p(box.semaphore)

    def wait(self) -> Tensor:
        if _trywait(self._semaphore) != 0:
            self._comms.take(self._semaphore, self._src)
        return self._data

    @property
    def sent_ns(self) -> int:
        """When the tensor was sent; after `wait()`."""
        return int(self._stamp.value)
