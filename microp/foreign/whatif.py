"""Prices another order, another number of microbatches or another partition with the costs of a trace.

::

    traced      0 ├───────────────┤ 1 ├───────────────┤        a stage's time is spread evenly over its layers,
    what if     0 ├─────┤ 1 ├─────┤ 2 ├─────┤ 3 ├─────┤        and each new stage has that of its own

What a trace does not tell is assumed, and said: a full backward that was never divided is half I and half W, because
both are one matrix product of the same size for each weight; a microbatch keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from inspect import signature
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from microp.foreign.names import TraceError
from microp.schedule import Schedule, validate
from microp.schedule.builders import ORDERS, from_file
from microp.simulator import Costs, Simulated, simulate


class Answer(NamedTuple):
    """What another order would take, in milliseconds, and what was assumed."""

    schedule: Schedule
    spans: Simulated
    notes: list[str]


def what_if(words: Sequence[str], traced: Schedule, costs: Costs, layers: Sequence[int]) -> Answer:
    """Return the answer to words such as `schedule=zb_h1 chunks=32 partition=4,4,5,3`.

    Args:
        traced: the order of the trace.
        costs: its costs, in milliseconds.
        layers: the number of layers of each of its stages; empty if that is not known.

    Raises:
        TraceError: a word is wrong, or the order cannot be built.
    """
    keys = dict(_pair(word) for word in words)
    sizes = [_whole("partition", part) for part in keys.pop("partition", "").strip("[]").split(",") if part]
    schedule = _schedule(keys, traced)
    new, notes = _for_stages(costs, traced, schedule, sizes, layers)
    if schedule.chunks != traced.chunks:
        notes.append(
            f"a microbatch keeps its size: a step of {schedule.chunks} has {schedule.chunks / traced.chunks:g} times "
            "the rows of the traced one"
        )
    return Answer(schedule, simulate(schedule, new), notes)


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not value:
        raise TraceError(f"--what-if {word}: write key=value, as in schedule=zb_h1 chunks=32")
    return key.removeprefix("schedule."), value


def _whole(key: str, value: str) -> int:
    if not value.strip().isdecimal() or not 0 < int(value) < 1_000_000:
        raise TraceError(f"--what-if {key}={value}: give a whole number from 1")
    return int(value)


def _schedule(keys: dict[str, str], traced: Schedule) -> Schedule:
    """Return the order that the keys name: one of microp's, or the one of a file."""
    name = keys.pop("schedule", traced.name)
    chunks = _whole("chunks", keys.pop("chunks", str(traced.chunks)))
    ranks = _whole("ranks", keys.pop("ranks", str(len(traced.ranks))))
    build: Any = ORDERS.get(name)
    if build is None and not Path(name).is_file():
        raise TraceError(f"--what-if schedule={name} is none of {', '.join(ORDERS)}, and no schedule file: give one")
    known = signature(build).parameters if build else {}
    own = {}
    for key, value in keys.items():
        if key not in known:
            raise TraceError(f"--what-if {key}={value}: {name} has no such key")
        default = known[key].default
        if isinstance(default, Enum) and value not in [each.value for each in type(default)]:
            raise TraceError(f"--what-if {key}={value}: use one of {', '.join(each.value for each in type(default))}")
        own[key] = type(default)(value) if isinstance(default, Enum | str) else _whole(key, value)
    try:
        return validate(build(ranks, chunks, **own) if build else from_file(ranks, chunks, name))
    except ValueError as error:
        raise TraceError(f"--what-if: {str(error).partition(chr(10))[0]}") from error


def _for_stages(
    costs: Costs, traced: Schedule, schedule: Schedule, sizes: Sequence[int], layers: Sequence[int]
) -> tuple[Costs, list[str]]:
    """Return the costs of the stages of another order, and what was assumed."""
    notes = list[str]()
    count, before = schedule.stages, traced.stages
    # 1. the layers of the stages before and now
    total = sum(sizes) or sum(layers) or count
    if sizes and (len(sizes) != count or (layers and total != sum(layers))):
        of = f" of {sum(layers)} layers" if layers else ""
        raise TraceError(f"--what-if partition={list(sizes)}: give {count} numbers, one per stage{of}")
    old_sizes = list(layers) or [total / before] * before
    new_sizes = list(sizes) or (old_sizes if count == before else [sum(old_sizes) / count] * count)
    if new_sizes != old_sizes:
        per_stage = "" if layers else f", each of which is taken to have {total / before:g} of {total:g}"
        notes.append(f"the times of the {before} traced stages are spread evenly over their layers{per_stage}")
    edges = [np.array([0, *accumulate(each)]) for each in (old_sizes, new_sizes)]

    def regrouped(times: Sequence[float]) -> tuple[float, ...]:
        sums = np.interp(edges[1], edges[0], [0, *accumulate(times)])
        return tuple(map(float, np.diff(sums)))

    # 2. their backwards
    weight = [costs.weight[stage] if costs.weight else 0 for stage in range(before)]
    backward, full = list(costs.backward), [costs.full_backward(stage) for stage in range(before)]
    if whole := [stage for stage in range(before) if not weight[stage]]:
        for stage in whole:
            backward[stage] = weight[stage] = full[stage] / 2
        if schedule.input_gradients:
            which = "no backward was divided" if len(whole) == before else f"stages {whole} have no divided backward"
            notes.append(f"{which}: I and W take half of a B each, as their FLOPs are equal")
    if len(whole) < before and not costs.full and len(schedule.input_gradients) < count * schedule.chunks:
        notes.append("no full backward was seen: a B takes as long as I and W, though undivided it may take less")
    # 3. what lies between actions
    same = schedule.placement == traced.placement
    hops = costs.latency if isinstance(costs.latency, tuple) else (costs.latency,) * before
    remote = [hops[stage] for stage in range(1, before) if traced.placement[stage] != traced.placement[stage - 1]]
    overhead = costs.overhead or (0,) * before
    return Costs(
        forward=regrouped(costs.forward),
        backward=regrouped(backward),
        weight=regrouped(weight),
        full=regrouped(full),
        latency=hops if same else float(median(remote or [0])),
        overhead=overhead if same else (float(np.mean(overhead)),) * count,
    ), notes
