"""The interface of a transport: messages between ranks, sums over ranks, barriers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from microp.comms.heartbeat import Heartbeats

REDUCTIONS = ("sum", "product", "min", "max")


class Pending(Protocol):
    """A transfer that has been started."""

    def wait(self) -> Tensor:
        """Block until the transfer has completed; return the tensor that was sent or received.

        Raises:
            TimeoutError: the peer did not send or receive in time.
            ConnectionError: the peer has ended, or it sent a different number of bytes.
        """


class Sum(Pending, Protocol):
    """A sum over ranks that has been started."""

    @property
    def ended_ns(self) -> int:
        """The `perf_counter_ns` at which the sum ended, valid after `wait()`; 0 if only the device knows it."""


class Done(NamedTuple):
    """A sum over ranks that has completed."""

    tensor: Tensor
    ended_ns: int = 0

    def wait(self) -> Tensor:
        return self.tensor


class Outbox(Protocol):
    """Sends one message of a step, again in each step."""

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        """Start to send `tensor`, which must not be written before `finish()`.

        `leaves_ns` is the `perf_counter_ns` that counts as the time of sending, if the transport `stamps`; 0 if the
        receiver does not ask for it.
        """

    @property
    def finish(self) -> Callable[[], Any] | None:
        """A function that waits until `tensor` may be written; None if no wait is needed."""


class Inbox(Pending, Protocol):
    """Receives one message of a step, again in each step."""

    @property
    def post(self) -> Callable[[], None] | None:
        """A function that posts the receive, so that bytes move before `wait()`; None if they do so without it."""


class PostedSend:
    """An outbox whose sends are started by a function, and have to be waited for."""

    def __init__(self, start: Callable[[Tensor], Pending]) -> None:
        self._start = start

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        del leaves_ns  # it sends no stamp
        self._pending = self._start(tensor)

    def finish(self) -> None:
        self._pending.wait()
        del self._pending


class PostedReceive:
    """An inbox whose receives are started by a function."""

    def __init__(self, start: Callable[[], Pending]) -> None:
        self._start = start

    def post(self) -> None:
        self._pending = self._start()

    def wait(self) -> Tensor:
        pending = self._pending
        del self._pending  # only the receiver keeps the tensor alive
        return pending.wait()


class _Sent(NamedTuple):
    """A send that has been started."""

    outbox: Outbox
    tensor: Tensor

    def wait(self) -> Tensor:
        if self.outbox.finish is not None:
            self.outbox.finish()
        return self.tensor


class Message(NamedTuple):
    """A tensor that is sent in every step.

    If two messages share a mailbox, the schedule guarantees that the first has been used before the second is sent.
    """

    src: int  # the sending rank
    dest: int  # the receiving rank
    tag: int  # unique among the step's tensors on this link
    nbytes: int
    slot: int  # the index of the mailbox that it uses


class Comms(ABC):
    """One rank's view of all ranks of its pipeline.

    ::

        replica 0    rank 0 ── rank 1 ── rank 2        a row is one pipeline
                       ┊         ┊         ┊           the ranks of a column hold the same stages
        replica 1    rank 0 ── rank 1 ── rank 2

    `replica_group` is the transport between the ranks of this rank's column; its ranks are the replicas. It is None if
    there is one pipeline.
    """

    rank: int  # from 0
    world_size: int  # the number of ranks of the pipeline
    device: torch.device  # on which received tensors are created
    timeout_s: float  # the longest wait, in seconds
    replica_group: Comms | None = None
    stamps = False  # whether messages of a step carry the time at which they were sent (`sent_ns` of an inbox)

    @property
    def replica(self) -> int:
        """The index of this rank's pipeline, from 0."""
        return self.replica_group.rank if self.replica_group else 0

    @property
    def world_rank(self) -> int:
        """The index of this rank among the ranks of all pipelines, counted replica after replica."""
        return self.replica * self.world_size + self.rank

    @cached_property
    def heartbeats(self) -> Heartbeats:
        """Where the ranks are in their step; only of this rank, unless the launcher has set that of all ranks."""
        return Heartbeats(self.world_rank + 1)

    def get_next_rank(self) -> int | None:
        """Return the rank after this one, or None on the last rank."""
        return self.rank + 1 if self.rank + 1 < self.world_size else None

    def get_prev_rank(self) -> int | None:
        """Return the rank before this one, or None on the first rank."""
        return self.rank - 1 if self.rank > 0 else None

    def expect(self, messages: Iterable[Message]) -> None:
        """Prepare for the messages of a step; every rank passes the messages of all ranks."""
        del messages  # by default a transport needs no preparation

    @abstractmethod
    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        """Return an object that sends one message of a step; all look-ups are done here, not in the step."""

    @abstractmethod
    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        """Return an object that receives one message of a step; all look-ups are done here, not in the step.

        The data of the tensor start at a 64-byte boundary.
        """

    def is_received(self, address: int) -> bool:
        """Return whether a tensor at `address` lies in memory that this transport keeps for received tensors."""
        del address
        return False

    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        """Start to send `tensor`, which must not be written before `wait()`."""
        outbox = self.outbox(tensor.shape, dest, tag, tensor.dtype)
        outbox.send(tensor, perf_counter_ns())
        return _Sent(outbox, tensor)

    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        """Start to receive; `wait()` returns the tensor."""
        inbox = self.inbox(shape, src, tag, dtype)
        if inbox.post is not None:
            inbox.post()
        return inbox

    def send_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> None:
        """Send `tensor`; return when it may be written again."""
        self.isend_tensor(tensor, dest, tag).wait()

    def recv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Receive a tensor of `shape` from rank `src` and return it.

        Raises:
            ConnectionError: the message has a different size.
        """
        return self.irecv_tensor(shape, src, tag, dtype).wait()

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Reduce `tensor` over all ranks in place with `sum`, `product`, `min` or `max`; return it.

        Raises:
            ValueError: `op` is not one of `REDUCTIONS`.
        """

    def iall_reduce(self, tensor: Tensor) -> Sum:
        """Start to sum `tensor` over all ranks in place; it must not be read or written before `wait()`.

        All ranks must start their sums in the same order.
        """
        return Done(self.all_reduce(tensor), ended_now(tensor))

    def all_reduce_mean(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its mean over all ranks; return it."""
        return self.all_reduce(tensor).div_(self.world_size)

    @abstractmethod
    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order. Not for the timed path.

        The value is one that JSON can write, because nothing that comes from another process is unpickled.
        """

    def gather_all(self, value: Any) -> list[Any]:
        """Return the `value` of every rank of all pipelines, in the order of `world_rank`; JSON can write it."""
        row = self.all_gather(value)
        if self.replica_group is None:
            return row
        return [gathered for replica in self.replica_group.all_gather(row) for gathered in replica]

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank of every pipeline has called it."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect. No transfer may be pending."""


class OverComms(Comms):
    """A transport over another one, which does what is the same for both."""

    def __init__(self, inner: Comms) -> None:
        self.rank, self.world_size = inner.rank, inner.world_size
        self.device, self.timeout_s = inner.device, inner.timeout_s
        self._inner = inner

    def expect(self, messages: Iterable[Message]) -> None:
        self._inner.expect(messages)

    def all_gather(self, value: Any) -> list[Any]:
        return self._inner.all_gather(value)

    def barrier(self) -> None:
        self._inner.barrier()

    def close(self) -> None:
        self._inner.close()


def mailbox_sizes(messages: Iterable[Message]) -> dict[tuple[int, int, int], int]:
    """Return (sender, receiver, slot) -> the bytes of the largest message that uses this mailbox."""
    sizes: dict[tuple[int, int, int], int] = {}
    for src, dest, _, nbytes, slot in messages:
        sizes[src, dest, slot] = max(nbytes, sizes.get((src, dest, slot), 0))
    return sizes


def bytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the number of bytes of a contiguous tensor."""
    return torch.Size(shape).numel() * dtype.itemsize


def view_of(memory: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the first of some bytes as a tensor."""
    return memory[: bytes_of(shape, dtype)].view(dtype).view(*shape)


def ended_now(tensor: Tensor) -> int:
    """Return the present `perf_counter_ns` as the end of a sum; 0 for a GPU's tensor, whose sum has been enqueued."""
    return 0 if tensor.is_cuda else perf_counter_ns()


def check_reduction(op: str) -> None:
    """Raise ValueError unless `op` is one of `REDUCTIONS`."""
    if op not in REDUCTIONS:
        raise ValueError(f"op={op!r} is not a reduction: use one of {', '.join(REDUCTIONS)}")
