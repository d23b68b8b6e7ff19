"""Made-up measurements of a profile: cases whose times follow exactly from known times of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microp.planner import Case
from microp.schedule import Schedule
from microp.settings import NEVER, Checkpointing
from microp.simulator import LayerTimes, costs_of, simulate

BEGIN, OPTIMIZER, STEPS = 1_000_000, 250_000, 3  # nanoseconds; steps that are equal


def case(
    layers: Sequence[LayerTimes],
    sizes: Sequence[int],
    schedule: Schedule,
    rows: float,
    checkpointing: Checkpointing = NEVER,
    **costs: Any,
) -> Case:
    """A case that was simulated: the times of layers in milliseconds, as `costs_of` takes them."""
    spans = simulate(schedule, costs_of(layers, sizes, schedule, checkpointing, **costs))
    times, steps = [], []
    for rank in range(len(schedule.ranks)):
        own = spans.rank == rank
        moments = np.stack([spans.wait_start[own], spans.start[own], spans.end[own]], axis=1).astype(float)
        whole = np.round(moments * 1e6).astype(np.int64) + BEGIN
        end = int(whole[-1, 2])
        times.append(np.stack([whole] * STEPS))
        steps.append(np.array([[BEGIN, end, end, end + OPTIMIZER]] * STEPS))
    return Case(schedule, tuple(sizes), rows, checkpointing, times, steps, [2**20] * len(times), rows * 1024)
