"""The glue between ranks: who is next to me, and how a tensor gets there.

::

    rank 0 ── isend_tensor(y, 1, tag) ──►  irecv_tensor(shape, 0, tag) ── rank 1
           ◄─ irecv_tensor(shape, 1, tag)  isend_tensor(grad, 0, tag) ──

Two implementations of one interface: `GroupComms` over `torch.distributed` (gloo on CPU,
NCCL on CUDA and ROCm), and `ThreadComms`, ranks that are threads of one process, for tests
and debuggers.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

_REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


@dataclass
class CommsSettings:
    """What a user chooses.

    Attributes:
        name: `auto` (NCCL on GPUs, gloo on CPUs), `gloo`, `nccl`, or `threads`: all ranks
            in this process.
        timeout_s: how long a rank waits for another before it gives up, in seconds.
    """

    name: str
    timeout_s: float

    def backend(self, device: str) -> str:
        """What `auto` means on `device`; else the name."""
        if self.name != "auto":
            return self.name
        return "nccl" if device == "cuda" else "gloo"

    def problems(self, device: str) -> list[str]:
        """What does not go together, a sentence each."""
        found = []
        if self.timeout_s <= 0:
            found.append(f"comms.timeout_s={self.timeout_s} is not above 0: give seconds, as 60")
        if (self.backend(device) == "nccl") != (device == "cuda"):
            found.append(f"comms={self.name} cannot move tensors of device={device}: use comms=auto")
        return found


class Pending(Protocol):
    """A transfer under way."""

    def wait(self) -> Tensor:
        """Block until it is done; the tensor that was sent or received.

        Raises:
            TimeoutError: the peer did not do its part in time.
            ConnectionError: the peer is gone, or sent another number of bytes.
        """


class Comms(ABC):
    """One rank's view of all ranks.

    Attributes:
        rank: this rank, from 0.
        world_size: the number of ranks.
        device: where received tensors are made.
        timeout_s: how long a wait may take, in seconds.
    """

    rank: int
    world_size: int
    device: torch.device
    timeout_s: float

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

    @abstractmethod
    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        """Start to send; `tensor` must not be written before `wait()`."""

    @abstractmethod
    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        """Start to receive; `wait()` gives the tensor, which starts at a 64-byte boundary."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Reduce `tensor` over all ranks in place (`sum`, `product`, `min` or `max`)."""

    def all_reduce_mean(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its mean over all ranks."""
        return self.all_reduce(tensor).div_(self.world_size)

    @abstractmethod
    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's picklable `value`, in rank order. Not for the timed path."""

    @abstractmethod
    def barrier(self) -> None:
        """Come back when every rank has come here."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Nothing may be under way."""


def _check_op(op: str) -> None:
    if op not in _REDUCE:
        raise ValueError(f"op={op!r} is not a reduction: use one of {', '.join(_REDUCE)}")


# --- torch.distributed -----------------------------------------------------------------------


def init_process_group(backend: str, device: torch.device, timeout_s: float) -> GroupComms:
    """Dial in: join the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name.

    Args:
        backend: `gloo`, or `nccl` (RCCL on ROCm).
        device: where this rank's tensors live.
        timeout_s: the longest wait for a peer, in seconds.
    """
    bound_to = device if backend == "nccl" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), device_id=bound_to)
    return GroupComms(backend, device, timeout_s)


class GroupComms(Comms):
    """Ranks that are processes, over a `torch.distributed` process group."""

    def __init__(self, backend: str, device: torch.device, timeout_s: float) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.device, self.timeout_s = device, timeout_s
        self._checks_sizes = backend == "gloo"
        # NCCL has no tags and runs the transfers of a group one after the other, so that
        # the two directions need a group each.
        ways = [dist.new_group(), dist.new_group()] if backend == "nccl" else [dist.group.WORLD] * 2
        self._up, self._down = ways

    def _group(self, src: int, dest: int) -> Any:
        return self._up if src < dest else self._down

    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        tensor = tensor.contiguous()
        work = dist.isend(tensor, dest, group=self._group(self.rank, dest), tag=tag)
        return _Transfer(work, tensor, dest, self.timeout_s)

    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        canary = _Canary(tensor) if self._checks_sizes else None
        work = dist.irecv(tensor, src, group=self._group(src, self.rank), tag=tag)
        return _Transfer(work, tensor, src, self.timeout_s, canary)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        _check_op(op)
        dist.all_reduce(tensor, _REDUCE[op])
        return tensor

    def all_gather(self, value: Any) -> list[Any]:
        values = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()


class _Canary:
    """Tells a message that was shorter than its buffer, which gloo completes without a word.

    The buffer's last element holds a signalling NaN before the transfer, which a whole
    message replaces. (A message that ends in just these bits would be refused; elements of
    less than 4 bytes have too few bits to be told by, and are not checked.)
    """

    PATTERN = torch.frombuffer(bytearray(b"microp\xf4\x7f"), dtype=torch.uint8)

    def __init__(self, buffer: Tensor) -> None:
        size = buffer.element_size()
        self._tail: Tensor | None = None
        if buffer.numel() and size >= 4:
            self._tail = buffer.view(-1)[-1:].view(torch.uint8)
            self._tail.copy_(self.PATTERN[-size:])

    def sings(self) -> bool:
        """Whether the last element has not been written."""
        return self._tail is not None and torch.equal(self._tail, self.PATTERN[-len(self._tail) :])


class _Transfer:
    """A torch.distributed transfer; keeps its tensor alive, as gloo asks for."""

    def __init__(self, work: Any, tensor: Tensor, peer: int, timeout_s: float, canary: _Canary | None = None) -> None:
        self._work, self._tensor, self._peer = work, tensor, peer
        self._timeout_s, self._canary = timeout_s, canary

    def wait(self) -> Tensor:
        try:
            self._work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            if "imed out" in str(error):
                raise TimeoutError(f"waited {self._timeout_s:g} s for rank {self._peer}") from error
            raise ConnectionError(f"lost rank {self._peer}: {error}") from error
        if self._canary is not None and self._canary.sings():
            raise ConnectionError(
                f"rank {self._peer} sent fewer bytes than the {self._tensor.nbytes} of shape {list(self._tensor.shape)}"
            )
        return self._tensor


# --- threads ---------------------------------------------------------------------------------


@dataclass
class _Hub:
    """What the threads of one `thread_comms` share."""

    world_size: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    boxes: dict[tuple[int, int, int], deque[Tensor]] = field(default_factory=lambda: defaultdict(deque))
    slots: list[Any] = field(default_factory=list)
    broken: bool = False

    def __post_init__(self) -> None:
        self.meeting = threading.Barrier(self.world_size)
        self.slots = [None] * self.world_size


def thread_comms(world_size: int, timeout_s: float = 30) -> list[ThreadComms]:
    """The comms of `world_size` ranks that are threads of this process, in rank order."""
    hub = _Hub(world_size)
    return [ThreadComms(hub, rank, timeout_s) for rank in range(world_size)]


class ThreadComms(Comms):
    """Ranks that are threads: a message is a copy, put into the receiver's box."""

    def __init__(self, hub: _Hub, rank: int, timeout_s: float) -> None:
        self.rank, self.world_size = rank, hub.world_size
        self.device, self.timeout_s = torch.device("cpu"), timeout_s
        self._hub = hub

    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        with self._hub.changed:
            self._hub.boxes[self.rank, dest, tag].append(tensor.detach().clone())
            self._hub.changed.notify_all()
        return _Sent(tensor)

    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        return _Box(self._hub, (src, self.rank, tag), tuple(shape), dtype, self.timeout_s)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        _check_op(op)
        combine: Any = {"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum}[op]
        first, *others = self.all_gather(tensor.clone())
        tensor.copy_(first)
        for other in others:  # in rank order: the same bits on every rank
            tensor.copy_(combine(tensor, other))
        return tensor

    def all_gather(self, value: Any) -> list[Any]:
        self._hub.slots[self.rank] = value
        self.barrier()
        values = list(self._hub.slots)
        self.barrier()
        return values

    def barrier(self) -> None:
        try:
            self._hub.meeting.wait(self.timeout_s)
        except threading.BrokenBarrierError:
            raise ConnectionError("another rank failed, or did not come to the barrier") from None

    def close(self) -> None:
        """Nothing to give back."""

    def abort(self) -> None:
        """Wake every waiting rank with a ConnectionError: this one failed."""
        self._hub.meeting.abort()
        with self._hub.changed:
            self._hub.broken = True
            self._hub.changed.notify_all()


@dataclass(frozen=True)
class _Sent:
    tensor: Tensor

    def wait(self) -> Tensor:
        return self.tensor


@dataclass(frozen=True)
class _Box:
    hub: _Hub
    key: tuple[int, int, int]
    shape: tuple[int, ...]
    dtype: torch.dtype
    timeout_s: float

    def wait(self) -> Tensor:
        src = self.key[0]
        with self.hub.changed:
            came = self.hub.changed.wait_for(lambda: self.hub.boxes[self.key] or self.hub.broken, self.timeout_s)
            if not came:
                raise TimeoutError(f"waited {self.timeout_s:g} s for rank {src}")
            if not self.hub.boxes[self.key]:
                raise ConnectionError(f"lost rank {src}: a rank of this process failed")
            tensor = self.hub.boxes[self.key].popleft()
        if (tuple(tensor.shape), tensor.dtype) != (self.shape, self.dtype):
            raise ConnectionError(
                f"rank {src} sent {tensor.dtype} {list(tensor.shape)}, expected {self.dtype} {list(self.shape)}"
            )
        return tensor
