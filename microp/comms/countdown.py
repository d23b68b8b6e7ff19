"""Counts the time in which this process ran, by which a rank gives up waiting for another one.

::

    waits ── 0.25 ─ 0.25 ─┤ Ctrl-Z ...... fg ├─ 0.25 ─ 0.25 ──► time-out
                          └──── counts 0.25 ─┘

Ctrl-Z stops all ranks, but no clock. A wait is therefore divided into ticks, of which each counts at most `TICK_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition

TICK_S = 0.25


class Countdown:
    """The rest of a time-out."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Begin again."""
        self._left, self._last = self._seconds, time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._left <= 0

    def tick(self) -> float:
        """Return the seconds that are left, at most 0 when time is up; called at least once per `TICK_S`."""
        now = time.monotonic()
        self._left -= min(now - self._last, TICK_S)
        self._last = now
        return self._left

    def wait_for(self, changed: Condition, is_done: Callable[[], object]) -> bool:
        """Wait until `is_done`, which is asked when the condition is notified; return whether it is in time."""
        while not changed.wait_for(is_done, max(0.0, min(self._left, TICK_S))):
            if self.tick() <= 0:
                return False
        return True
