"""What it costs that ranks take turns on too few cores, from runs of more ranks than there are cores.

::

    measured step     |──────────────────────|        caches that another rank has filled, changes of process,
    simulated step    |───────────────|               and ranks that are woken late
    factor            the speed at which the simulated step takes as long as the measured one
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from microp.job import Workload
from microp.planner.forecast import speed_of, stage_costs
from microp.planner.profile import Profile
from microp.planner.samples import Case
from microp.schedule import spread
from microp.simulator import simulate_on_cores

SLOWEST = 0.2  # a lower factor is not looked for
HALVINGS = 10  # of the range in which the factor lies


def crowded_factors(profile: Profile, kinds: Sequence[int], cases: Sequence[Case], backend: str) -> tuple[float, ...]:
    """Return the factor at each of the profile's numbers of rows, 1 if there are no cases.

    Args:
        profile: all other times of the model.
        kinds: the kind of each of its layers.
        cases: with more ranks than cores.
        backend: the transport that they used.
    """
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
