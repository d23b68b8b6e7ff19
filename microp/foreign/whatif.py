"""Prices another order, another number of microbatches or another partition with the costs of a trace.

::

    traced      0 ├───────────────┤ 1 ├───────────────┤        a stage's time is spread evenly over its layers,
    what if     0 ├─────┤ 1 ├─────┤ 2 ├─────┤ 3 ├─────┤        and each new stage has that of its own

What a trace does not tell is assumed, and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from microp.foreign.names import TraceError
from microp.schedule import Schedule
from microp.simulator import Costs, Simulated, simulate


class Answer(NamedTuple):
    """What another order would take, in milliseconds, and what was assumed."""

    schedule: Schedule
    spans: Simulated
    notes: list[str]


def what_if(schedule: Schedule, sizes: Sequence[int], traced: Schedule, costs: Costs, layers: Sequence[int]) -> Answer:
    """Return what another order would take.

    Args:
        sizes: the number of layers of each of its stages; empty: as many in each.
        traced: the order of the trace.
        costs: of the trace, in milliseconds.
        layers: the number of layers of each traced stage; empty if that is not known.

    Raises:
        TraceError: the sizes do not fit.
    """
    new, notes = _for_stages(costs, traced, schedule, sizes, layers)
    if schedule.chunks != traced.chunks:
        notes.append(f"a microbatch keeps its size: the batch is {schedule.chunks / traced.chunks:g} times as large")
    return Answer(schedule, simulate(schedule, new), notes)


def _for_stages(
    costs: Costs, traced: Schedule, schedule: Schedule, sizes: Sequence[int], layers: Sequence[int]
) -> tuple[Costs, list[str]]:
    """Return the costs of the stages of another order, and what was assumed."""
    notes, count, before = list[str](), schedule.stages, traced.stages
    # 1. the layers of the stages, before and now
    total = sum(sizes) or sum(layers) or count
    if sizes and (len(sizes) != count or (layers and total != sum(layers))):
        of = f" of {sum(layers)} layers" if layers else ""
        raise TraceError(f"partition={','.join(map(str, sizes))}: give {count} numbers, one per stage{of}")
    old: list[float] = list(layers) or [total / before] * before
    new: list[float] = list(sizes) or (old if count == before else [total / count] * count)
    if new != old:
        taken = "" if layers else f", {total / before:g} of {total:g} in each"
        notes.append(f"the time of each traced stage is spread evenly over its layers{taken}")

    def regrouped(times: Sequence[float]) -> tuple[float, ...]:
        return tuple(np.diff(np.interp([0, *accumulate(new)], [0, *accumulate(old)], [0, *accumulate(times)])).tolist())

    # 2. their backwards
    full = [costs.full_backward(stage) for stage in range(before)]
    weight = [costs.weight[stage] if costs.weight else 0 for stage in range(before)]
    whole = [stage for stage in range(before) if not weight[stage]]
    backward = [full[stage] / 2 if stage in whole else costs.backward[stage] for stage in range(before)]
    weight = [full[stage] / 2 if stage in whole else weight[stage] for stage in range(before)]
    if whole and schedule.input_gradients:
        notes.append(
            f"stages {whole} have no divided backward: I and W take half of a B each, as their FLOPs are equal"
        )
    if len(whole) < before and not costs.full and len(schedule.input_gradients) < count * schedule.chunks:
        notes.append("no undivided backward was seen: it takes as long as I and W, though it may take less")
    # 3. what lies between actions
    hops = costs.latency if isinstance(costs.latency, tuple) else (costs.latency,) * before
    remote = [hops[stage] for stage in range(1, before) if traced.placement[stage] != traced.placement[stage - 1]]
    overhead = costs.overhead or (0,) * before
    same = schedule.placement == traced.placement
    return Costs(
        regrouped(costs.forward),
        regrouped(backward),
        regrouped(weight),
        full=regrouped(full),
        latency=hops if same else float(median(remote or [0])),
        overhead=overhead if same else (float(mean(overhead)),) * count,
    ), notes
