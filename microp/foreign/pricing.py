"""Prices another order, another number of microbatches or another partition with the costs of a trace.

::

    traced      0 ├───────────────┤ 1 ├───────────────┤        a stage's time is spread evenly over its layers,
    what if     0 ├─────┤ 1 ├─────┤ 2 ├─────┤ 3 ├─────┤        and each new stage has that of its own
    a profile     ▒ ▒ ▒ ▒ ▒ ▒ ▒ ▒     ▒ ▒ ▒ ▒ ▒ ▒ ▒ ▒          for plans, prices and emulated runs

What a trace does not tell is assumed, and said. All times are milliseconds, and costs are from `calibrate_steps`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from math import nan
from statistics import mean, median

import numpy as np

from microp import profiling
from microp.foreign.steps import Traced
from microp.job import Workload
from microp.records import StepRow
from microp.schedule import Schedule
from microp.settings import NEVER, MlpSettings
from microp.simulator import Costs, LayerMemory, Simulated, simulate, unit_shares

MUCH = 50  # how often the times of stages count against an even spread
LEAST = 1e-6  # milliseconds: the fit divides by times


def what_if(
    schedule: Schedule, sizes: Sequence[int], traced: Schedule, layers: Sequence[int], costs: Costs
) -> tuple[Simulated, list[str]]:
    """Return the spans of another order, and what was assumed.

    Args:
        sizes, layers: the number of layers of each of its stages, and of each traced one.
        traced, costs: the order of the trace, and its costs.
    """
    before, count, notes = traced.stages, schedule.stages, list[str]()
    # 1. each stage's time, by its layers
    if list(sizes) != list(layers):
        notes.append("the time of each traced stage is spread evenly over its layers")

    def regrouped(times: Sequence[float]) -> tuple[float, ...]:
        old, new, sums = ([0, *accumulate(each)] for each in (layers, sizes[: schedule.depth], times))
        return tuple(np.diff(np.interp(new, old, sums)).tolist() * schedule.copies)

    full, backward, weight = map(regrouped, _backwards(costs))
    # 2. what lies between actions
    latency, overhead = costs.latency, costs.overhead or (0,) * before
    if schedule.placement != traced.placement:
        latency, overhead = _hop(traced, costs), (float(mean(overhead)),) * count
    hops = {"latency": latency, "overhead": overhead, **unit_shares(schedule)}
    stages = Costs(regrouped(costs.forward), backward, weight, full=full, **hops)
    # 3. what the trace does not tell
    whole = [stage for stage, time in enumerate(costs.weight) if not time]
    if whole and schedule.input_gradients:
        notes.append(f"no divided backward of stages {whole}: I and W take half of a B each, as their FLOPs are equal")
    if len(whole) < before and not costs.full and len(schedule.input_gradients) < count * schedule.chunks:
        notes.append("no undivided backward was seen: it takes as long as I and W, though it may take less")
    if schedule.slices > 1:
        notes.append("slices share the time of their microbatch evenly, though later ones attend to more")
    if schedule.copies > 1:
        notes.append("the sum of the copies' gradients takes no time")
    if schedule.chunks != traced.chunks:
        notes.append(f"a microbatch keeps its size: the batch is {schedule.chunks / traced.chunks:g} times as large")
    return simulate(schedule, stages), notes


def profile_of(
    traced: Traced, steps: Sequence[Sequence[StepRow]], layers: Sequence[int], costs: Costs, rows: int
) -> tuple[profiling.Profile, list[str]]:
    """Return a profile of the machine of a trace, and what was assumed.

    Args:
        steps: the rows of the trace's steps, rank by rank.
        layers, costs: as for `what_if`.
        rows: the rows of a microbatch.
    """
    schedule, model = traced.schedule, MlpSettings("mlp", sum(layers), 64, "float32")
    # 1. the times of layers: the first, those inside, the last
    stages = [Counter(model.kinds[end - size : end]) for size, end in zip(layers, accumulate(layers), strict=True)]
    parts = [(at, kinds, 1.0) for at, kinds in enumerate(stages)]
    if len(stages) < len({*model.kinds}):  # the times of fewer stages than unknowns are spread evenly
        even = [(at, Counter([kind]), 1 / layers[at]) for at, kinds in enumerate(stages) for kind in kinds]
        parts = MUCH * parts + even
    samples = [
        profiling.Sample(op, tuple(kinds.items()), factor * rows, before, 1.0, schedule.chunks, ms, nan, nan)
        for (op, before), times in zip(profiling.USUAL.items(), (costs.forward, *_backwards(costs)), strict=True)
        for at, kinds, share in parts
        for factor in (1, 2)  # a time is proportional to the rows
        for ms in [factor * share * max(float(times[at]), LEAST)]
    ]
    fitted, memory = profiling.fit_times(samples, [], model.kinds), {kind: LayerMemory(0) for kind in {*model.kinds}}
    # 2. the times outside of actions
    ranks = list(zip(*steps, strict=True))
    updates = [median(row["optimizer_ms"] for row in rank) for rank in ranks]
    head = min(median(row["first_start_ns"] - row["began_ns"] for row in rank) for rank in ranks) / 1e6
    tail = max(median(row["step_ms"] - row["pipeline_ms"] - row["optimizer_ms"] for row in rank) for rank in ranks)
    profile = profiling.Profile(
        machine=profiling.Machine(traced.device, "the machine of a trace", len(ranks), "", 1),
        model=model.identity,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        batch_size=rows * schedule.chunks,
        ranks=len(ranks),
        **vars(fitted),
        transports={"shm": profiling.Transport(_hop(schedule, costs), 0.0, float(mean(costs.overhead or [0])), 0.0)},
        optimizer=(median(updates), 0.0),
        edges=(0.0, 0.0),  # an emulated run has none of the traced loop's
        memory={profiling.DIVIDED: memory, profiling.UNDIVIDED: memory},
    )
    # 3. how well it fits
    workload = Workload(schedule, tuple(layers), (rows,) * schedule.chunks, NEVER)
    priced = profiling.stage_costs(profile, model.kinds, workload, "shm")
    off = max(abs(mine / (own or 1) - 1) for mine, own in zip(priced.forward, costs.forward, strict=True))
    few = ["what so few stages do not tell is spread evenly over their layers"] * (len(stages) < len({*model.kinds}))
    return profile, [
        *few,
        f"its layers are alike but for the first and the last: the forwards of the stages fit within {100 * off:.0f} %",
        f"a step is its actions and the optimizer: {head + max(0.0, tail):.3g} ms of the traced loop are left out",
        "a layer's time is proportional to the rows of a microbatch; a trace does not tell its memory",
        "a full backward takes as long as I and W" if schedule.input_gradients else "I and W take half of a B each",
    ]


def _backwards(costs: Costs) -> tuple[list[float], list[float], list[float]]:
    """Return the times of each stage's B, I and W; I and W are half of a B each where none was divided."""
    full = [costs.full_backward(stage) for stage in range(len(costs.forward))]
    known = list(zip(full, costs.backward, costs.weight, strict=True))
    return full, [own if w else b / 2 for b, own, w in known], [w or b / 2 for b, _, w in known]


def _hop(traced: Schedule, costs: Costs) -> float:
    """Return the median time of a hop between ranks."""
    ranks = traced.placement
    return float(median([costs.hop(each) for each in range(1, len(ranks)) if ranks[each] != ranks[each - 1]] or [0]))
