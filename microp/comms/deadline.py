"""Waits until an exact moment without keeping a core busy for the whole wait.

::

    now ─────── sleep ───────┤ 0.06 ms ├─ deadline       the operating system wakes a sleeping thread
                               spin                      late, but seldom by more than 0.06 ms
"""

from __future__ import annotations

import ctypes
import sys
import time
from time import perf_counter_ns

SPIN_NS = 60_000
_PR_SET_TIMERSLACK = 29  # linux/prctl.h


def wake_on_time() -> None:
    """Make Linux wake this thread at the end of its sleeps; by default it may do so up to 50 µs late."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class Pacer:
    """The clock of one rank with an emulated device; it subtracts the time by which the host overslept.

    ::

        the host     sleeps ────────────┤ due │◄── late_ns ──►│ awake        many ranks wake up at the same
        the device   an action ─────────┤     the next one ──────────►       moment, and there are few cores

    The time that the host overslept does not count as device time: the next action begins when
    the last one ended, or when its input arrived if that was later. The time that an engine
    spends between two actions counts.

    Attributes:
        late_ns: the nanoseconds by which the last wait overslept; 0 once an action has begun.
    """

    def __init__(self) -> None:
        self.late_ns = 0

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


def sleep_until(deadline_ns: int) -> None:
    """Return when `perf_counter_ns` reaches `deadline_ns`, or at once if that has passed."""
    left = deadline_ns - perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while perf_counter_ns() < deadline_ns:
        pass
