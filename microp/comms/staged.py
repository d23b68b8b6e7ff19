"""Adds a GPU's tensors to a transport of CPU tensors: each message is copied through pinned memory.

::

    sender     GPU ── copy ──► pinned ── send ──►            the host waits for the copy, then it sends
    receiver                      ── receive ──► pinned ── copy ──► GPU      the GPU waits for the copy

NCCL refuses two ranks on one GPU; with this their messages go through the host's memory. Page-locked (pinned) memory
is what the GPU copies from and to by itself. A message's pinned memory is written again when its mailbox is: the
schedule guarantees that the receiver has used the last one, and so has copied it (`Message.slot`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from microp.comms.base import Comms, Inbox, Message, Outbox, OverComms, check_reduction, mailbox_sizes, view_of


class StagedComms(OverComms):
    """A transport between ranks whose tensors are on a GPU, over one that moves CPU tensors.

    `gpu` is what has the GPU's events, by the names of `torch.cuda`.
    """

    def __init__(self, inner: Comms, device: torch.device, gpu: Any = torch.cuda) -> None:
        super().__init__(inner)
        self.device, self._gpu = device, gpu
        self._pinned: dict[tuple[int, int, int], Tensor] = {}  # (source, destination, tag) -> bytes
        if inner.replica_group is not None:
            self.replica_group = StagedComms(inner.replica_group, device, gpu)

    def expect(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        mine = [message for message in messages if self.rank in (message.src, message.dest)]
        boxes = {key: self._pin([nbytes], torch.uint8) for key, nbytes in mailbox_sizes(mine).items()}
        self._pinned = {(src, dest, tag): boxes[src, dest, slot] for src, dest, tag, _, slot in mine}
        super().expect(messages)

    def _pin(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=self.device.type == "cuda")

    def _staging(self, shape: Sequence[int], dtype: torch.dtype, src: int, dest: int, tag: int) -> Tensor:
        """Return the pinned memory of a message as a tensor."""
        box = self._pinned.get((src, dest, tag))
        return self._pin(shape, dtype) if box is None else view_of(box, shape, dtype)

    def to_host(self, tensor: Tensor, host: Tensor) -> Tensor:
        """Copy a tensor of the GPU into `host`; return it when the copy has been made."""
        host.copy_(tensor, non_blocking=True)
        copied = self._gpu.Event()
        copied.record()
        copied.synchronize()
        return host

    def to_gpu(self, host: Tensor) -> Tensor:
        """Return a tensor of the GPU that will hold what `host` has, which must not be written until then."""
        return torch.empty(host.shape, dtype=host.dtype, device=self.device).copy_(host, non_blocking=True)

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        host = self._staging(shape, dtype, self.rank, dest, tag)
        return _Sender(self, self._inner.outbox(shape, dest, tag, dtype), host)

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        host = self._staging(shape, dtype, src, self.rank, tag)
        return _Receiver(self, self._inner.inbox(shape, src, tag, dtype), host)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        check_reduction(op)
        host = self.to_host(tensor, self._pin(tensor.shape, tensor.dtype))
        return tensor.copy_(self._inner.all_reduce(host, op))


class _Sender:
    """The sender's side of a message."""

    def __init__(self, comms: StagedComms, inner: Outbox, host: Tensor) -> None:
        self._comms, self._inner, self._host = comms, inner, host
        self.finish = inner.finish

    def send(self, tensor: Tensor, leaves_ns: int = 0) -> None:
        self._inner.send(self._comms.to_host(tensor, self._host), leaves_ns)


class _Receiver:
    """The receiver's side of a message."""

    def __init__(self, comms: StagedComms, inner: Inbox, host: Tensor) -> None:
        self._comms, self._inner, self._host = comms, inner, host
        self.post = inner.post

    def wait(self) -> Tensor:
        self._host.copy_(self._inner.wait())
        return self._comms.to_gpu(self._host)
