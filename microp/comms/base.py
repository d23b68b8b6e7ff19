"""What ranks can do with each other: the interface that every transport has."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

REDUCTIONS = ("sum", "product", "min", "max")


@dataclass
class CommsSettings:
    """What a user chooses.

    Attributes:
        name: `auto` (NCCL on GPUs; on CPUs shared memory where all ranks are on one host,
            else gloo), `shm`, `gloo`, `nccl`, or `threads`: all ranks in this process.
        timeout_s: how long a rank waits for another before it gives up, in seconds.
    """

    name: str
    timeout_s: float

    def backend(self, device: str) -> str:
        """What `auto` means on `device`; else the name."""
        if self.name != "auto":
            return self.name
        if device == "cuda":
            return "nccl"
        return "shm" if not _why_no_shm() else "gloo"

    def problems(self, device: str) -> list[str]:
        """What does not go together, a sentence each."""
        found = []
        if self.timeout_s <= 0:
            found.append(f"comms.timeout_s={self.timeout_s} is not above 0: give seconds, as 60")
        if (self.backend(device) == "nccl") != (device == "cuda"):
            found.append(f"comms={self.name} cannot move tensors of device={device}: use comms=auto")
        if self.name == "shm" and (why := _why_no_shm()):
            found.append(f"comms=shm {why}: use comms=gloo")
        return found


def _why_no_shm() -> str:
    """What keeps these ranks from sharing memory; empty if nothing does."""
    if not hasattr(os, "memfd_create"):
        return "needs Linux"
    if os.environ.get("LOCAL_WORLD_SIZE", "1") != os.environ.get("WORLD_SIZE", "1"):
        return "needs all ranks on one host"
    return ""


class Pending(Protocol):
    """A transfer under way."""

    def wait(self) -> Tensor:
        """Block until it is done; the tensor that was sent or received.

        Raises:
            TimeoutError: the peer did not do its part in time.
            ConnectionError: the peer is gone, or sent another number of bytes.
        """


class Sum(Pending, Protocol):
    """A sum over ranks under way."""

    @property
    def ended_ns(self) -> int:
        """After `wait()`: when it was done on the host's `perf_counter_ns`; 0 where only the device knows."""


@dataclass(frozen=True)
class Summed:
    """A sum over ranks that is over."""

    tensor: Tensor
    ended_ns: int

    def wait(self) -> Tensor:
        return self.tensor


class Outbox(Protocol):
    """Sends one of a step's messages, in every step."""

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        """Start to send; `tensor` must not be written before `finish()`.

        Args:
            tensor: what is sent.
            leaves_ns: the `perf_counter_ns` from which it counts as sent, where the transport
                `stamps`; 0 for now.
        """

    @property
    def finish(self) -> Callable[[], Any] | None:
        """Waits until `tensor` may be written; None if it may at once."""


class Inbox(Protocol):
    """Receives one of a step's messages, in every step."""

    @property
    def post(self) -> Callable[[], None] | None:
        """Starts to receive, so that bytes move before they are waited for; None if they do anyway."""

    def wait(self) -> Tensor:
        """Block until the tensor is there. Raises as `Pending.wait`."""


class PostedSend:
    """An outbox over `isend_tensor`."""

    def __init__(self, start: Callable[[Tensor], Pending]) -> None:
        self._start = start

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        del leaves_ns  # not stamped
        self._pending = self._start(tensor)

    def finish(self) -> None:
        self._pending.wait()
        del self._pending


class PostedReceive:
    """An inbox over `irecv_tensor`."""

    def __init__(self, start: Callable[[], Pending]) -> None:
        self._start = start

    def post(self) -> None:
        self._pending = self._start()

    def wait(self) -> Tensor:
        pending = self._pending
        del self._pending  # a tensor that has come is the receiver's alone
        return pending.wait()


class Message(NamedTuple):
    """A tensor that travels in every step.

    Attributes:
        src, dest: the ranks.
        tag: what no other tensor of the step has on this link.
        nbytes: its size.
        slot: the mailbox it goes through; where two share one, the schedule sees to it that
            the first has been used when the second is sent.
    """

    src: int
    dest: int
    tag: int
    nbytes: int
    slot: int


class Comms(ABC):
    """One rank's view of all ranks of its pipeline.

    ::

        replica 0    rank 0 ── rank 1 ── rank 2        a row is a pipeline
                       ┊         ┊         ┊           a column holds the same stages
        replica 1    rank 0 ── rank 1 ── rank 2

    Attributes:
        rank: this rank, from 0.
        world_size: the number of ranks.
        device: where received tensors are made.
        timeout_s: how long a wait may take, in seconds.
        across: the column, a comms of its own whose ranks are the replicas; None if there
            is one pipeline.
        stamps: whether a step's messages say when they were sent (an inbox's `sent_ns`).
    """

    rank: int
    world_size: int
    device: torch.device
    timeout_s: float
    across: Comms | None = None
    stamps = False

    @property
    def replica(self) -> int:
        """Which pipeline this rank is in, from 0."""
        return self.across.rank if self.across else 0

    @property
    def number(self) -> int:
        """This rank's number among those of all pipelines, replica after replica."""
        return self.replica * self.world_size + self.rank

    def gather_all(self, value: Any) -> list[Any]:
        """`all_gather` over all pipelines, in the order of `number`."""
        row = self.all_gather(value)
        return [each for row in self.across.all_gather(row) for each in row] if self.across else row

    def get_next_rank(self) -> int | None:
        """The rank after this one, or None on the last."""
        return self.rank + 1 if self.rank + 1 < self.world_size else None

    def get_prev_rank(self) -> int | None:
        """The rank before this one, or None on the first."""
        return self.rank - 1 if self.rank > 0 else None

    def send_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> None:
        """Send, and come back when `tensor` may be written again."""
        self.isend_tensor(tensor, dest, tag).wait()

    def recv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Receive a tensor of `shape` from `src`.

        Raises:
            ConnectionError: what came has another size.
        """
        return self.irecv_tensor(shape, src, tag, dtype).wait()

    def expect(self, messages: Iterable[Message]) -> None:
        """Get ready for a step's messages; every rank names all of them, its own or not."""
        del messages  # a transport that needs no preparation

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        """What sends one of a step's messages, with all that can be looked up looked up."""
        del shape, dtype
        return PostedSend(partial(self.isend_tensor, dest=dest, tag=tag))

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        """What receives one of a step's messages, with all that can be looked up looked up."""
        return PostedReceive(partial(self.irecv_tensor, shape, src, tag, dtype))

    @abstractmethod
    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        """Start to send; `tensor` must not be written before `wait()`."""

    @abstractmethod
    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        """Start to receive; `wait()` gives the tensor, which starts at a 64-byte boundary."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Reduce `tensor` over all ranks in place (`sum`, `product`, `min` or `max`)."""

    def iall_reduce(self, tensor: Tensor) -> Sum:
        """Start to sum `tensor` over all ranks in place; it must not be touched before `wait()`.

        All ranks start their sums in the same order.
        """
        return Summed(self.all_reduce(tensor), perf_counter_ns())

    def all_reduce_mean(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its mean over all ranks."""
        return self.all_reduce(tensor).div_(self.world_size)

    @abstractmethod
    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's picklable `value`, in rank order. Not for the timed path."""

    @abstractmethod
    def barrier(self) -> None:
        """Come back when every rank, of all pipelines, has come here."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Nothing may be under way."""


def check_reduction(op: str) -> None:
    """Refuse what is not a reduction.

    Raises:
        ValueError: `op` is none of `REDUCTIONS`.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"op={op!r} is not a reduction: use one of {', '.join(REDUCTIONS)}")
