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


def sleep_until(deadline_ns: int) -> None:
    """Come back at `deadline_ns` of `perf_counter_ns`, at once if that has passed."""
    left = deadline_ns - perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while perf_counter_ns() < deadline_ns:
        pass
