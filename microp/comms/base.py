"""What ranks can do with each other: the interface that every transport has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

REDUCTIONS = ("sum", "product", "min", "max")


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


def check_reduction(op: str) -> None:
    """Refuse what is not a reduction.

    Raises:
        ValueError: `op` is none of `REDUCTIONS`.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"op={op!r} is not a reduction: use one of {', '.join(REDUCTIONS)}")
