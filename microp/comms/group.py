"""Ranks that are processes, over a `torch.distributed` process group: gloo, NCCL, RCCL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from microp.comms.base import Comms, Inbox, Message, Outbox, Pending, PostedReceive, PostedSend, check_reduction

_REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


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
        self._buffers: dict[tuple[int, int], Tensor] = {}  # (source, tag) -> where it comes in

    def _group(self, src: int, dest: int) -> Any:
        return self._up if src < dest else self._down

    def expect(self, messages: Iterable[Message]) -> None:
        """On CPUs: make the buffers that a step's messages come into, one for each mailbox of the schedule."""
        if self.device.type != "cpu":
            return  # a GPU's allocator hands memory out in the order of its stream
        mine = [message for message in messages if message.dest == self.rank]
        sizes: dict[tuple[int, int], int] = {}
        for message in mine:
            sizes[message.src, message.slot] = max(message.nbytes, sizes.get((message.src, message.slot), 0))
        pool = {key: torch.empty(nbytes, dtype=torch.uint8) for key, nbytes in sizes.items()}
        self._buffers = {(message.src, message.tag): pool[message.src, message.slot] for message in mine}

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        group = self._group(self.rank, dest)

        def start(tensor: Tensor) -> Pending:
            tensor = tensor.contiguous()
            return _Transfer(group.send([tensor], dest, tag), tensor, dest, self.timeout_s)

        return PostedSend(start)

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        """Into a buffer that was made for it; who sends checks the size, so that no canary is needed."""
        buffer, group = self._buffers.get((src, tag)), self._group(src, self.rank)
        if buffer is None:
            return super().inbox(shape, src, tag, dtype)
        tensor = buffer[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(*shape)

        def start() -> Pending:
            return _Transfer(group.recv([tensor], src, tag), tensor, src, self.timeout_s)

        return PostedReceive(start)

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
        check_reduction(op)
        dist.all_reduce(tensor, _REDUCE[op])
        return tensor

    def all_gather(self, value: Any) -> list[Any]:
        values = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.barrier()  # no rank takes its end of a connection away from another
        del self._up, self._down  # the group's threads end with it, and not with the interpreter
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
