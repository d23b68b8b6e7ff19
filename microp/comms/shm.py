"""The transport between ranks of one host: tensors go through mailboxes in shared memory.

::

    sender                 mailbox                      receiver
    copy the tensor ─────► │ semaphore │ stamp │ data │
    post ────────────────►                              wait: spin briefly, then block
                                                        use the data without a copy

One segment holds the mailboxes of all links. It has no name in any file system (rank 0
creates it, the others open it through rank 0's descriptor), so it disappears with the ranks
even if they are killed. POSIX semaphores order memory accesses on every processor, including Arm.
The barrier before a step uses mailboxes without data and goes through rank 0; the ranks leave it
within microseconds of each other. All other messages (set-up, reductions) go through gloo.
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
import torch.distributed as dist
from torch import Tensor

from microp.comms.base import Inbox, Message, Outbox, Pending
from microp.comms.group import GroupComms
from microp.comms.patience import Patience
from microp.comms.processes import is_alive

LINE = 64  # bytes: a cache line, and the alignment at which matrix products give the same bits
STAMP = 32  # the offset of the stamp in the first line, after the semaphore
_BARRIER_TAG = -1  # the tag of the barrier's mailboxes
LIVENESS_CHECK_S = 1.0  # a blocked wait checks once per this period that its peer is alive

_libc = ctypes.CDLL(None, use_errno=True)
_trywait, _post = _libc.sem_trywait, _libc.sem_post


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Box(NamedTuple):
    """One mailbox as mapped by one rank."""

    semaphore: int  # the address
    stamp: Any  # a ctypes integer in the segment: the time of sending
    offset: int  # the offset of the data in the segment
    nbytes: int


class ShmComms(GroupComms):
    """A `GroupComms` that sends the messages of a step through shared memory."""

    stamps = True

    def __init__(self, device: torch.device, timeout_s: float, group: Any = None) -> None:
        super().__init__("gloo", device, timeout_s, group)
        self._boxes: dict[tuple[int, int, int], _Box] = {}
        self._pids = [int(pid) for pid in self.all_gather(os.getpid())]
        self._patience = Patience(dist.get_world_size())

    def expect(self, messages: Iterable[Message]) -> None:
        meeting = [
            Message(*link, _BARRIER_TAG, 0, _BARRIER_TAG)
            for rank in range(1, self.world_size)
            for link in ((rank, 0), (0, rank))
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
        """Create the segment on rank 0 and map it on all ranks."""
        descriptor = -1
        if self.rank == 0:
            descriptor = os.memfd_create("microp", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        theirs = int(self.all_gather(descriptor)[0])
        if self.rank != 0:
            descriptor = os.open(f"/proc/{self._pids[0]}/fd/{theirs}", os.O_RDWR | os.O_CLOEXEC)
        self._segment = mmap.mmap(descriptor, size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._segment))
        if self.rank == 0:
            for offset in semaphores:
                _libc.sem_init(ctypes.c_void_p(self._base + offset), 1, 0)
        self.barrier()  # after it every rank has mapped the segment, and every semaphore exists
        os.close(descriptor)

    def _box(self, offset: int, nbytes: int) -> _Box:
        stamp = ctypes.c_int64.from_buffer(self._segment, offset + STAMP)
        return _Box(self._base + offset, stamp, offset + LINE, nbytes)

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        box = self._boxes[self.rank, dest, tag]
        return _Sender(box, self._data(box, shape, dtype))

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        box = self._boxes[src, self.rank, tag]
        return _Receiver(self, box, self._data(box, shape, dtype), src)

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
        self._patience.look()
        others = range(1, self.world_size) if self.rank == 0 else [0]
        come = [self._boxes[rank, self.rank, _BARRIER_TAG].semaphore for rank in others]
        go = [self._boxes[self.rank, rank, _BARRIER_TAG].semaphore for rank in others]
        if self.rank != 0:
            _post(ctypes.c_void_p(go[0]))
        for rank, semaphore in zip(others, come, strict=True):
            self.take(ctypes.c_void_p(semaphore), rank)
        if self.rank == 0:
            for semaphore in go:
                _post(ctypes.c_void_p(semaphore))
        if self.replica_group is not None:  # every pipeline has met, so meeting per column completes the barrier
            self.replica_group.barrier()

    def _data(self, box: _Box, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the mailbox's data as a tensor.

        Raises:
            ConnectionError: the tensor is larger than the mailbox.
        """
        count = torch.Size(shape).numel()
        if count * dtype.itemsize > box.nbytes:
            raise ConnectionError(f"{dtype} {list(shape)} does not fit into a mailbox of {box.nbytes} bytes")
        return torch.frombuffer(self._segment, dtype=dtype, count=count, offset=box.offset).view(*shape)

    def take(self, semaphore: ctypes.c_void_p, src: int) -> None:
        """Wait until rank `src` has posted the semaphore of a mailbox.

        Raises:
            TimeoutError: it was not posted within `timeout_s`.
            ConnectionError: the sender's process has ended.
        """
        if spin_ns := self._patience.spin_ns:
            end = perf_counter_ns() + spin_ns
            while perf_counter_ns() < end:
                if _trywait(semaphore) == 0:
                    return
        self._block(semaphore, src)

    def _block(self, semaphore: ctypes.c_void_p, src: int) -> None:
        give_up = time.monotonic() + self.timeout_s
        while (left := give_up - time.monotonic()) > 0:
            until = time.time() + min(left, LIVENESS_CHECK_S)
            moment = _Timespec(int(until), int(until % 1 * 1e9))
            if _libc.sem_timedwait(semaphore, ctypes.byref(moment)) == 0:
                return
            if ctypes.get_errno() not in (errno.ETIMEDOUT, errno.EINTR):
                raise OSError(ctypes.get_errno(), "sem_timedwait")
            if not is_alive(self._pids[src]):
                raise ConnectionError(f"lost rank {src}: its process {self._pids[src]} has ended")
        raise TimeoutError(f"waited {self.timeout_s:g} s for rank {src}")


class _Copied(NamedTuple):
    """A send that has completed: the tensor has been copied."""

    tensor: Tensor

    def wait(self) -> Tensor:
        return self.tensor


class _Sender:
    """The sender's side of a mailbox."""

    finish = None  # `send` has copied the tensor

    def __init__(self, box: _Box, data: Tensor) -> None:
        self._data, self._stamp = data, box.stamp
        self._semaphore = ctypes.c_void_p(box.semaphore)

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        self._data.copy_(tensor)
        self._stamp.value = leaves_ns or perf_counter_ns()
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
