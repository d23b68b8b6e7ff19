"""Waiting for a moment exactly, without burning a core on the way.

::

    now ─────── sleep ───────┤ 0.12 ms ├─ deadline       the scheduler wakes a sleeper late,
                               spin                      but seldom by more than that
"""

from __future__ import annotations

import time
from time import perf_counter_ns

SPIN_NS = 120_000


def sleep_until(deadline_ns: int) -> None:
    """Come back at `deadline_ns` of `perf_counter_ns`, at once if that has passed."""
    left = deadline_ns - perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while perf_counter_ns() < deadline_ns:
        pass
