"""How a rank waits for another one: how long it keeps its core, when it gives up, and whether the other still runs.

::

    cores are free     spin ──────────────────────┤ 2 ms ├─ sleep     a wake-up would cost 0.1 ms
    cores are wanted   spin ┤ 0.05 ms ├─ sleep                        the core is another's meanwhile

    sleeps ── 0.25 ─ 0.25 ─┤ Ctrl-Z ...... fg ├─ 0.25 ─ 0.25 ──► time-out
                           └──── counts 0.25 ─┘

A rank that spins while others want its core uses up the turn in which it would compute, and the rank that it waits
for may be one of those others. Linux counts for every thread how long it was ready to run and had no core. A step in
which that was more than `DELAYED` of its time is a delayed one: the launcher and the system take about 1 % of the
cores, and a wait that sleeps is delayed by its own wake-up. The cores are wanted if delayed steps take more than
`CROWDED` of the time, of which what is long ago counts less. On a quiet machine something takes the core for some
milliseconds a few times per second; that delays a short step by half of its time, but few steps. Only steps in which
the rank waited for a message count: the steps of another engine have other threads, and wait elsewhere.

Ctrl-Z stops all ranks, but no clock. A wait is therefore divided into ticks, of which each counts at most `TICK_S`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from math import exp
from pathlib import Path
from threading import Condition
from time import perf_counter_ns

from microp.system import process_started

LONG_NS = 2_000_000  # a shorter wait never sleeps
SHORT_NS = 50_000  # about the time of one wake-up
DELAYED = 0.04
CROWDED = 0.5
MEMORY_NS = 0.25e9
DELAYS = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, nanoseconds without one, number of turns
TICK_S = 0.25


class Patience:
    """One rank's estimate of how much the cores are wanted.

    With more ranks in the launch than cores a wait never spins. Without this thread's file of delays every spin is
    short.
    """

    def __init__(self, ranks: int, delays: Path = DELAYS) -> None:
        self.spin_ns = 0  # how long a wait spins before it sleeps
        self.has_waited = False  # whether the rank has waited for a message since the last look; set by those who wait
        self._file = None
        if ranks <= len(os.sched_getaffinity(0)):
            self.spin_ns = SHORT_NS
            with suppress(OSError):
                self._file = delays.open("rb", buffering=0)
        self._crowded = 0.0  # the share of the time in delayed steps
        self._seen = self._at = 0
        self.look()

    def look(self) -> None:
        """Update `spin_ns`; called between steps, since it takes 2 µs."""
        if self._file is None:
            return
        delayed, now = int(os.pread(self._file.fileno(), 64, 0).split()[1]), perf_counter_ns()
        if self._at and self.has_waited:
            passed = now - self._at
            kept = exp(-passed / MEMORY_NS)
            self._crowded = kept * self._crowded + (1 - kept) * (delayed - self._seen > DELAYED * passed)
            self.spin_ns = SHORT_NS if self._crowded > CROWDED else LONG_NS
        self._seen, self._at = delayed, now


class Countdown:
    """The rest of a time-out."""

    def __init__(self, seconds: float) -> None:
        self._left, self._last = seconds, time.monotonic()

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


def is_alive(pid: int) -> bool:
    """Return whether process `pid` runs."""
    return process_started(pid) is not None
