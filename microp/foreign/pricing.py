"""Prices another order, another number of microbatches or another partition with the costs of a trace.

::

    traced      0 ├───────────────┤ 1 ├───────────────┤        a stage's time is spread evenly over its layers,
    what if     0 ├─────┤ 1 ├─────┤ 2 ├─────┤ 3 ├─────┤        and each new stage has that of its own
    a profile     ▒ ▒ ▒ ▒ ▒ ▒ ▒ ▒     ▒ ▒ ▒ ▒ ▒ ▒ ▒ ▒          for plans, prices and emulated runs

What a trace does not tell is assumed, and said. All times are milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate
from math import nan
from statistics import mean, median

import numpy as np

from microp import profiling
from microp.foreign.names import TraceError
from microp.foreign.steps import Traced
from microp.job import Workload
from microp.records import StepRow
from microp.schedule import Schedule
from microp.settings import NEVER, MlpSettings
from microp.simulator import Costs, LayerMemory, Simulated, simulate

LAYERS = 8  # of a stage, if that is not known
LEAST = 1e-6  # milliseconds: the fit divides by times


def what_if(
    schedule: Schedule, sizes: Sequence[int], traced: Schedule, costs: Costs, layers: Sequence[int]
) -> tuple[Simulated, list[str]]:
    """Return the spans of another order, and what was assumed.

    Args:
        sizes: the number of layers of each of its stages; empty: as many in each.
        traced: the order of the trace.
        costs: of the trace, from `calibrate_steps`.
        layers: the number of layers of each traced stage; empty if that is not known.

    Raises:
        TraceError: the sizes do not fit.
    """
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

    # 2. what the trace does not tell
    full, backward, weight = map(regrouped, _backwards(costs))
    whole = [stage for stage, time in enumerate(costs.weight) if not time]
    if whole and schedule.input_gradients:
        notes.append(f"no divided backward of stages {whole}: I and W take half of a B each, as their FLOPs are equal")
    if len(whole) < before and not costs.full and len(schedule.input_gradients) < count * schedule.chunks:
        notes.append("no undivided backward was seen: it takes as long as I and W, though it may take less")
    if schedule.chunks != traced.chunks:
        notes.append(f"a microbatch keeps its size: the batch is {schedule.chunks / traced.chunks:g} times as large")
    # 3. what lies between actions
    is_same, overhead = schedule.placement == traced.placement, costs.overhead or (0,) * before
    latency = costs.latency if is_same else _hop(traced, costs)
    overhead = overhead if is_same else (float(mean(overhead)),) * count
    stages = Costs(regrouped(costs.forward), backward, weight, full=full, latency=latency, overhead=overhead)
    return simulate(schedule, stages), notes


def profile_of(
    traced: Traced, steps: Sequence[Sequence[StepRow]], costs: Costs, layers: Sequence[int], rows: int
) -> tuple[profiling.Profile, list[str]]:
    """Return a profile of the machine of a trace, and what had to be assumed.

    Args:
        steps: the rows of the trace, rank by rank.
        costs, layers: as for `what_if`; without layers each stage has LAYERS.
        rows: the rows of a microbatch.
    """
    schedule = traced.schedule
    sizes = tuple(layers) or (LAYERS,) * schedule.stages
    model = MlpSettings("mlp", sum(sizes), 64, "float32")
    every = dict(zip(profiling.USUAL, (costs.forward, *_backwards(costs)), strict=True))  # by op, for each stage
    samples = []
    for op, times in every.items():
        for size, end, ms in zip(sizes, accumulate(sizes), times, strict=True):
            kinds, before = tuple(Counter(model.kinds[end - size : end]).items()), profiling.USUAL[op]
            for factor in (1, 2):  # a time is proportional to the rows
                time = max(ms * factor, LEAST), nan, nan
                samples.append(profiling.Sample(op, kinds, rows * factor, before, 1.0, schedule.chunks, *time))
    fitted = profiling.fit_times(samples, [], model.kinds)

    def per_rank(of: Callable[[StepRow], float]) -> list[float]:
        return [median(map(of, rank)) for rank in zip(*steps, strict=True)]

    updates, head = (
        per_rank(lambda row: row["optimizer_ms"]),
        lambda row: (row["first_start_ns"] - row["began_ns"]) / 1e6,
    )
    tails = per_rank(lambda row: row["step_ms"] - row["pipeline_ms"] - row["optimizer_ms"])
    memory = dict.fromkeys(sorted(set(model.kinds)), LayerMemory(0))
    profile = profiling.Profile(
        machine=profiling.Machine(traced.device, "the machine of a trace", len(updates), "", 1),
        model=model.identity,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        batch_size=rows * schedule.chunks,
        ranks=len(updates),
        **vars(fitted),
        crowded=(1.0, 1.0),
        transports={"shm": profiling.Transport(_hop(schedule, costs), 0.0, float(mean(costs.overhead or [0])), 0.0)},
        optimizer=(median(updates), 0.0),
        edges=(min(per_rank(head)), max(0.0, *tails)),
        memory={profiling.DIVIDED: memory, profiling.UNDIVIDED: memory},
    )
    workload = Workload(schedule, sizes, (rows,) * schedule.chunks, NEVER)
    priced = profiling.stage_costs(profile, model.kinds, workload, "shm")
    off = max(abs(mine / (own or 1) - 1) for mine, own in zip(priced.forward, costs.forward, strict=True))
    return profile, [
        *[f"each stage has {LAYERS} layers, as --layers is not given"] * (not layers),
        f"its layers are alike but for the first and the last: the forwards of the stages fit within {100 * off:.0f} %",
        "a layer's time is proportional to the rows of a microbatch, and its memory, which a trace does not tell, is 0",
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
