"""The transport between ranks that are threads of one process, for tests and debuggers."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from microp.comms.base import Comms, Inbox, Outbox, Sum, check_reduction
from microp.comms.waiting import Countdown


class _Hub:
    """The state that the threads of one pipeline, or of one column of replicas, share."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.broken = world_size, False
        self.changed = threading.Condition()
        self.boxes: dict[tuple[int, int, int], deque[tuple[Tensor, int]]] = defaultdict(deque)
        self.slots: list[Any] = [None] * world_size
        self.here = 0  # how many threads have come to the present meeting
        self.met = 0  # how many meetings are over

    def meet(self, timeout_s: float) -> None:
        """Return when all threads have called this.

        Raises:
            TimeoutError, ConnectionError: a thread did not within `timeout_s`, or has failed.
        """
        with self.changed:
            meeting, self.here, was_broken = self.met, self.here + 1, self.broken
            if self.here == self.world_size:
                self.here, self.met = 0, meeting + 1
                self.changed.notify_all()
            came = Countdown(timeout_s).wait_for(self.changed, lambda: self.met > meeting or self.broken)
            if self.broken and (self.met == meeting or was_broken):
                raise ConnectionError("another rank failed")
            if not came:
                raise TimeoutError(f"waited {timeout_s:g} s for another rank")


def thread_comms(world_size: int, timeout_s: float = 30, replicas: int = 1) -> list[ThreadComms]:
    """Return the transports of `replicas` pipelines of `world_size` threads each, in the order of `world_rank`."""
    rows = [_Hub(world_size) for _ in range(replicas)]
    everyone = [ThreadComms(row, rank, timeout_s) for row in rows for rank in range(world_size)]
    if replicas > 1:
        columns = [_Hub(replicas) for _ in range(world_size)]
        for number, comms in enumerate(everyone):
            comms.replica_group = ThreadComms(columns[comms.rank], number // world_size, timeout_s)
    return everyone


class ThreadComms(Comms):
    """The transport between threads: a message is a copy of the tensor in the receiver's box."""

    stamps = True

    def __init__(self, hub: _Hub, rank: int, timeout_s: float) -> None:
        self.rank, self.world_size = rank, hub.world_size
        self.device, self.timeout_s = torch.device("cpu"), timeout_s
        self._hub = hub

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        return _Sender(self, dest, tag)

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        return _Receiver(self._hub, (src, self.rank, tag), tuple(shape), dtype, self.timeout_s)

    def put(self, tensor: Tensor, dest: int, tag: int, leaves_ns: int) -> None:
        """Put a copy of a tensor into the box of its receiver."""
        # Only written, and so not counted by this rank's meter of memory: the copy is the receiver's.
        copy = torch.empty(0, dtype=tensor.dtype).resize_(tensor.shape).copy_(tensor.detach())
        with self._hub.changed:
            self._hub.boxes[self.rank, dest, tag].append((copy, leaves_ns))
            self._hub.changed.notify_all()

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        check_reduction(op)
        combine: Any = {"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum}[op]
        first, *others = self.all_gather(tensor.clone())
        tensor.copy_(first)
        for other in others:  # in rank order, so that every rank gets the same bits
            tensor.copy_(combine(tensor, other))
        return tensor

    def iall_reduce(self, tensor: Tensor) -> Sum:
        """Return a sum that is made when it is waited for: within a backward a rank may hold what another one needs."""
        return _Later(self, tensor)

    def all_gather(self, value: Any) -> list[Any]:
        self._hub.slots[self.rank] = value
        self._hub.meet(self.timeout_s)
        values = list(self._hub.slots)
        self._hub.meet(self.timeout_s)
        return values

    def barrier(self) -> None:
        self._hub.meet(self.timeout_s)
        if self.replica_group:  # every pipeline has met, so meeting per column completes the barrier
            self.replica_group.barrier()

    def close(self) -> None:
        """Do nothing: threads hold no connection."""

    def abort(self) -> None:
        """Wake every waiting rank with a ConnectionError, because this rank failed."""
        with self._hub.changed:
            self._hub.broken = True
            self._hub.changed.notify_all()
        if isinstance(self.replica_group, ThreadComms):
            self.replica_group.abort()


@dataclass
class _Later:
    """A sum over ranks that is made in `wait`."""

    comms: ThreadComms
    tensor: Tensor
    ended_ns: int = 0

    def wait(self) -> Tensor:
        self.comms.all_reduce(self.tensor)
        self.ended_ns = perf_counter_ns()
        return self.tensor


@dataclass(frozen=True)
class _Sender:
    """The sender's side of a box."""

    comms: ThreadComms
    dest: int
    tag: int
    finish = None  # `send` has copied the tensor

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        self.comms.put(tensor, self.dest, self.tag, leaves_ns)


@dataclass
class _Receiver:
    """The receiver's side of a box."""

    post = None
    hub: _Hub
    key: tuple[int, int, int]
    shape: tuple[int, ...]
    dtype: torch.dtype
    timeout_s: float
    sent_ns: int = 0  # the `perf_counter_ns` at which the tensor was sent, valid after `wait()`

    def wait(self) -> Tensor:
        src = self.key[0]
        with self.hub.changed:
            countdown = Countdown(self.timeout_s)
            if not countdown.wait_for(self.hub.changed, lambda: self.hub.boxes[self.key] or self.hub.broken):
                raise TimeoutError(f"waited {self.timeout_s:g} s for rank {src}")
            if not self.hub.boxes[self.key]:
                raise ConnectionError(f"lost rank {src}: a rank of this process failed")
            tensor, self.sent_ns = self.hub.boxes[self.key].popleft()
        if (tuple(tensor.shape), tensor.dtype) != (self.shape, self.dtype):
            raise ConnectionError(
                f"rank {src} sent {tensor.dtype} {list(tensor.shape)}, expected {self.dtype} {list(self.shape)}"
            )
        return tensor
