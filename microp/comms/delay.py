"""Time on an emulated device: a rank that waits for an exact moment, and a link whose tensors arrive after a latency.

::

    now ─────── sleep ───────┤ 0.06 ms ├─ deadline       the operating system wakes a sleeping thread
                               spin                      late, but seldom by more than 0.06 ms

    sender      copy, stamp ──── leaves ────────┐        a message may be in its mailbox before the moment that
    receiver    woken, sleeps ──────────────────┴── latency_ns ──► reads it          counts as the time of sending
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor

from microp.comms.base import Comms, Inbox, Outbox, OverComms

SPIN_NS = 60_000
_PR_SET_TIMERSLACK = 29  # linux/prctl.h


def sleep_until(deadline_ns: int) -> None:
    """Return when `perf_counter_ns` reaches `deadline_ns`, or at once if that has passed."""
    left = deadline_ns - perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while perf_counter_ns() < deadline_ns:
        pass


class Pacer:
    """The clock of one rank with an emulated device, in its thread; it subtracts the time by which the host overslept.

    ::

        the host     sleeps ────────────┤ due │◄── late_ns ──►│ awake        many ranks wake up at the same
        the device   an action ─────────┤     the next one ──────────►       moment, and there are few cores

    The time that the host overslept does not count as device time: the next action begins when
    the last one ended, or when its input arrived if that was later. The time that an engine
    spends between two actions counts.
    """

    def __init__(self) -> None:
        self.late_ns = 0  # by how much the last wait overslept; 0 once an action has begun
        if sys.platform == "linux":  # which by default wakes this thread up to 50 µs after the end of a sleep
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def now(self) -> int:
        """Return the device's time in nanoseconds: `perf_counter_ns` minus `late_ns`."""
        return perf_counter_ns() - self.late_ns

    def begin(self) -> int:
        """Begin an action; return the device's time at its beginning, in nanoseconds."""
        began, self.late_ns = self.now(), 0
        return began

    def until(self, due_ns: int) -> None:
        """Return at `due_ns`, or at once if that has passed; no action begins before `due_ns`."""
        now = perf_counter_ns()
        if now < due_ns:
            sleep_until(due_ns)
            self.late_ns = perf_counter_ns() - due_ns
        else:
            self.late_ns = min(self.late_ns, now - due_ns)


class DelayedComms(OverComms):
    """A transport whose tensors arrive no earlier than `latency_ns` after they were sent.

    The `inner` transport must stamp its messages (`Comms.stamps`); `pacer`, the rank's clock, waits for the arrival.
    """

    def __init__(self, inner: Comms, latency_ns: int, pacer: Pacer) -> None:
        super().__init__(inner)
        self._latency_ns, self._pacer = latency_ns, pacer

    def outbox(self, shape: Sequence[int], dest: int, tag: int, dtype: torch.dtype) -> Outbox:
        return self._inner.outbox(shape, dest, tag, dtype)

    def inbox(self, shape: Sequence[int], src: int, tag: int, dtype: torch.dtype) -> Inbox:
        return _Delayed(self._inner.inbox(shape, src, tag, dtype), self._latency_ns, self._pacer)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        return self._inner.all_reduce(tensor, op)


class _Delayed(NamedTuple):
    inner: Any
    latency_ns: int
    pacer: Pacer
    post: None = None  # a transport that stamps its messages needs none

    def wait(self) -> Tensor:
        tensor: Tensor = self.inner.wait()
        self.pacer.until(self.inner.sent_ns + self.latency_ns)
        return tensor
