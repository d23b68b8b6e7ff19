"""Factors beside the fitted times: of numbers of rows between those of the cases, and of ranks that share cores.

::

    ms │          x 23 rows: factor 1.05
       │     x  ·   ·
       │  ·          x 24 rows: factor 1.00       ── the line from 16 to 32 rows
       └─16────────────32── rows

    measured step     |──────────────────────|        caches that another rank has filled, changes of process,
    simulated step    |───────────────|               and ranks that are woken late
    factor            the speed at which the simulated step takes as long as the measured one
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microp.job import Workload
from microp.planner.forecast import speed_of, stage_costs
from microp.planner.profile import Profile, interpolate
from microp.planner.samples import Case
from microp.schedule import spread
from microp.simulator import simulate_on_cores

SLOWEST = 0.2  # a lower factor of ranks that share cores is not looked for
HALVINGS = 10  # of the range in which it lies


def numbers_of_rows(batch: int) -> list[int]:
    """Return every number of rows that a microbatch of a batch can have, ascending."""
    return sorted({rows for chunks in range(1, batch + 1) for rows in (batch // chunks, -(-batch // chunks))})


def row_factors(
    rows: Sequence[int], times: Mapping[str, Sequence[float]], places: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Return, by op, the factor at each number of rows; none where there are no two places to draw a line through.

    Args:
        rows: the numbers of rows, ascending.
        times: by op, the time at each of them.
        places: the numbers of rows of a profile, at which the factor is 1; those within `rows` count.
    """
    inside = [place for place in places if rows[0] <= place <= rows[-1]]
    if len(inside) < 2:
        return {}
    found = {}
    for op, own in times.items():
        known = [interpolate(rows, own, place) for place in inside]
        lines = [interpolate(inside, known, count) if count <= inside[-1] else 0.0 for count in rows]
        found[op] = tuple(time / line if line > 0 else 1.0 for time, line in zip(own, lines, strict=True))
    return found


def crowded_factors(profile: Profile, kinds: Sequence[int], cases: Sequence[Case], backend: str) -> tuple[float, ...]:
    """Return the factor at each of the profile's numbers of rows, 1 if there are no cases."""
    found = defaultdict[float, list[float]](list)
    for case in cases:
        found[case.rows].append(_factor(profile, kinds, case, backend))
    if not found:
        return (1.0,) * len(profile.rows)
    rows = sorted(found)
    return tuple(np.interp(profile.rows, rows, [float(np.mean(found[each])) for each in rows]).tolist())


def _factor(profile: Profile, kinds: Sequence[int], case: Case, backend: str) -> float:
    """Return the factor of one case, from `SLOWEST` to 1, by halving that range."""
    began = np.min([times[:, 0, 1] for times in case.times], axis=0)
    ended = np.max([times[:, -1, 2] for times in case.times], axis=0)
    measured = float(np.median(ended - began)) / 1e6
    chunks = case.schedule.chunks
    rows = tuple(spread(round(case.rows * chunks), chunks))
    workload = Workload(case.schedule, case.sizes, rows, case.checkpointing)
    costs = stage_costs(profile, kinds, workload, backend)
    low, high = SLOWEST, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        speed = speed_of(replace(profile, crowded=(middle,) * len(profile.rows)), case.rows)
        spans = simulate_on_cores(case.schedule, costs, speed)
        if float(spans.end.max() - spans.start.min()) > measured:
            low = middle
        else:
            high = middle
    return high
