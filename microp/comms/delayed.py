"""Adds a fixed latency to another transport: a tensor arrives some time after it was sent.

::

    sender      copy, stamp ──── leaves ────────┐
    receiver    woken, sleeps ──────────────────┴── latency_ns ──► reads it

A message may be in its mailbox before the moment that counts as the time of sending. The
receiver then knows when to wake up, which is more exact than being woken by the sender.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from microp.comms.base import Comms, Inbox, Message, Outbox, OverComms, Pending, Sum
from microp.comms.deadline import Pacer


class DelayedComms(OverComms):
    """A transport whose tensors arrive no earlier than `latency_ns` after they were sent.

    The `inner` transport must stamp its messages (`Comms.stamps`); `pacer`, the rank's clock, waits for the arrival.
    """

    def __init__(self, inner: Comms, latency_ns: int, pacer: Pacer) -> None:
        super().__init__(inner)
        self._latency_ns, self._pacer = latency_ns, pacer

    def expect(self, messages: Iterable[Message]) -> None:
        self._inner.expect(messages)

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        return self._inner.outbox(shape, dest, tag, dtype)

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        inbox: Any = self._inner.inbox(shape, src, tag, dtype)
        return self._delayed(inbox) if inbox.post is None else super().inbox(shape, src, tag, dtype)

    def _delayed(self, inner: Any) -> _Delayed:
        return _Delayed(inner, self._latency_ns, self._pacer)

    def isend_tensor(self, tensor: Tensor, dest: int, tag: int = 0) -> Pending:
        return self._inner.isend_tensor(tensor, dest, tag)

    def irecv_tensor(self, shape: Sequence[int], src: int, tag: int = 0, dtype: torch.dtype = torch.float32) -> Pending:
        return self._delayed(self._inner.irecv_tensor(shape, src, tag, dtype))

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        return self._inner.all_reduce(tensor, op)

    def iall_reduce(self, tensor: Tensor) -> Sum:
        return self._inner.iall_reduce(tensor)


class _Delayed(NamedTuple):
    inner: Any
    latency_ns: int
    pacer: Pacer
    post: None = None

    def wait(self) -> Tensor:
        tensor: Tensor = self.inner.wait()
        self.pacer.until(self.inner.sent_ns + self.latency_ns)
        return tensor
