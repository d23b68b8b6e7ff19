"""Waiting for a moment exactly, without burning a core on the way.

::

    now ─────── sleep ───────┤ 0.06 ms ├─ deadline       the scheduler wakes a sleeper late,
                               spin                      but seldom by more than that
"""

from __future__ import annotations

import ctypes
import sys
import time
from time import perf_counter_ns

SPIN_NS = 60_000
_PR_SET_TIMERSLACK = 29  # linux/prctl.h


def wake_on_time() -> None:
    """Ask for this thread to be woken when its sleep is over, and not up to 50 µs later, as Linux does by default."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class Pacer:
    """One rank's waits for the moments of an emulated device, and how late it came back from the last one.

    ::

        the host     sleeps ────────────┤ due │◄── late_ns ──►│ awake        many ranks wake up at the same
        the device   an action ─────────┤     the next one ──────────►       moment, and few cores serve them

    What the host overslept is not the device's: its next action began when the last one ended,
    or when its input came, if that was later. What an engine does between them counts.

    Attributes:
        late_ns: what the last wait overslept, if no action has begun since.
    """

    def __init__(self) -> None:
        self.late_ns = 0

    def now(self) -> int:
        """The device's time: `perf_counter_ns`, less what was overslept."""
        return perf_counter_ns() - self.late_ns

    def begin(self) -> int:
        """When the action began that begins now."""
        began, self.late_ns = self.now(), 0
        return began

    def until(self, due_ns: int) -> None:
        """Come back at `due_ns`, at once if that has passed; nothing begins before it."""
        now = perf_counter_ns()
        if now < due_ns:
            sleep_until(due_ns)
            self.late_ns = perf_counter_ns() - due_ns
        else:
            self.late_ns = min(self.late_ns, now - due_ns)


def sleep_until(deadline_ns: int) -> None:
    """Come back at `deadline_ns` of `perf_counter_ns`, at once if that has passed."""
    left = deadline_ns - perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while perf_counter_ns() < deadline_ns:
        pass
