"""Prices another order, another number of microbatches or another partition with the costs of a trace.

::

    traced      0 ├───────────────┤ 1 ├───────────────┤        a stage's time is spread evenly over its layers,
    what if     0 ├─────┤ 1 ├─────┤ 2 ├─────┤ 3 ├─────┤        and each new stage has that of its own
    a profile     ▒ ▒ ▒ ▒ ▒ ▒ ▒ ▒     ▒ ▒ ▒ ▒ ▒ ▒ ▒ ▒          for plans, prices and emulated runs

What a trace does not tell is assumed, and said. All times are milliseconds, and costs are from `calibrate_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from statistics import mean, median

import numpy as np

from microp import profiling
from microp.foreign.steps import Traced
from microp.records import StepRow
from microp.schedule import Schedule
from microp.settings import MlpSettings
from microp.simulator import Costs, LayerMemory, Simulated, simulate, unit_shares

Answer = tuple[Schedule, Simulated, list[str]]  # an order, its spans, and what was assumed


def what_if(schedule: Schedule, sizes: Sequence[int], traced: Schedule, layers: Sequence[int], costs: Costs) -> Answer:
    """Price an order whose stages have `sizes` layers; those of the `traced` one, with these costs, have `layers`."""

    # 1. each stage's time, by its layers
    def regrouped(times: Sequence[float]) -> tuple[float, ...]:
        old, new, sums = ([0, *accumulate(each)] for each in (layers, sizes[: schedule.depth], times))
        return tuple(np.diff(np.interp(new, old, sums)).tolist() * schedule.copies)

    full, backward, weight = map(regrouped, _backwards(costs))
    # 2. what lies between actions
    latency, overhead = costs.latency, costs.overhead or (0,) * traced.stages
    if schedule.placement != traced.placement:
        latency, overhead = _hop(traced, costs), (float(mean(overhead)),) * schedule.stages
    hops = {"latency": latency, "overhead": overhead, **unit_shares(schedule)}
    stages = Costs(regrouped(costs.forward), backward, weight, full=full, **hops)
    # 3. what the trace does not tell
    whole = [stage for stage, time in enumerate(costs.weight) if not time]
    has_full = len(schedule.input_gradients) < schedule.stages * schedule.chunks
    assumed = {
        "a traced stage's time is spread evenly over its layers, 8 without --layers": list(sizes) != list(layers),
        f"stages {whole} divided no backward: I and W take half of a B each": whole and schedule.input_gradients,
        "no undivided backward was seen: it takes as long as I and W": has_full and not (whole or costs.full),
        "slices share the time of their microbatch evenly, though later ones attend to more": schedule.slices > 1,
        "the sum of the copies' gradients takes no time": schedule.copies > 1,
        f"the batch is {schedule.chunks / traced.chunks:g} times as large": schedule.chunks != traced.chunks,
    }
    return schedule, simulate(schedule, stages), [text for text, is_so in assumed.items() if is_so]


def profile_of(
    traced: Traced, steps: Sequence[Sequence[StepRow]], layers: Sequence[int], costs: Costs, rows: int
) -> tuple[profiling.Profile, list[str]]:
    """Return a profile of the machine of a trace, and what was assumed.

    `steps` are the rows of the trace's steps, rank by rank; a microbatch has `rows`; see `what_if` for the others.
    """
    schedule, model = traced.schedule, MlpSettings("mlp", sum(layers), 64, "float32")
    # 1. the times of layers: the first, those inside, the last; they are proportional to the rows
    times: dict[int, dict[str, tuple[float, ...]]] = {kind: {} for kind in model.kinds}
    for name, own in zip(profiling.TIMES, (costs.forward, *_backwards(costs), costs.forward), strict=True):
        per_layer = [time / count for time, count in zip(own, layers, strict=True)]
        inside = mean(per_layer[1:-1] or [min(per_layer)])
        ends = {0: own[0] - (layers[0] - 1) * inside, max(times): own[-1] - (layers[-1] - 1) * inside}
        for kind, table in times.items():
            time = max(0.0, ends.get(kind, inside))
            table[name] = time, 2 * time
    # 2. what else a machine is known by
    profile = profiling.Profile(
        machine=profiling.Machine(traced.device, "the machine of a trace", len(schedule.ranks), "", 1),
        model=model.identity,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        batch_size=rows * schedule.chunks,
        ranks=len(schedule.ranks),
        rows=(rows, 2 * rows),
        layers=times,
        fixed=dict.fromkeys(profiling.TIMES, (0.0, 0.0)),
        after={},
        checkpointed=(1.0, 1.0),
        alone=(1.0, 1.0),
        transports={"shm": profiling.Transport(_hop(schedule, costs), 0.0, float(mean(costs.overhead or [0])), 0.0)},
        optimizer=(median(row["optimizer_ms"] for step in steps for row in step), 0.0),
        edges=(0.0, 0.0),  # an emulated run has none of the traced loop's
        memory=dict.fromkeys((profiling.DIVIDED, profiling.UNDIVIDED), dict.fromkeys(times, LayerMemory(0))),
    )
    # 3. how well it fits
    inner = [time / count for time, count in zip(costs.forward, layers, strict=True)][1:-1]
    off = max((abs(each / (mean(inner) or 1) - 1) for each in inner), default=0)
    return profile, [
        *["what one stage takes more than the other is its first or last layer's"] * (len(layers) == 2),
        f"layers (8 a stage without --layers) are alike but for the ends: forwards fit within {100 * off:.0f} %",
        "a step is its actions and the optimizer: the rest of the traced loop is left out",
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
