"""Reads the times of a profile's cases: what each kind of action took, and what lies between two actions.

::

    rank 0   |F0|.|F1|...|B0|.|B1|     one case: some steps of a schedule, with the times of every action
    rank 1        |F0|.|F1|B0|...

    Sample   the actions of one stage that are alike: their op, and what the rank ran before them
    Between  the engine's own time, hops, the optimizer
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Action, Op, Schedule
from microp.settings import Checkpointing

Array = NDArray[Any]
FORWARD, FULL, BACKWARD, WEIGHT = "forward", "full", "backward", "weight"
CHECKPOINTED, RECOMPUTED = "checkpointed", "recomputed"  # a forward that keeps nothing, and its backward
OPTIMIZER = "optimizer"  # what ran before the first action of a step
USUAL = {FORWARD: FORWARD, FULL: BACKWARD, BACKWARD: FORWARD, WEIGHT: BACKWARD}  # what usually runs before


@dataclass(frozen=True)
class Case:
    """A schedule that was run for a profile, with its measured times, which are nanoseconds and one array per rank."""

    schedule: Schedule
    sizes: tuple[int, ...]  # the number of layers of each stage
    rows: float
    checkpointing: Checkpointing
    times: Sequence[Array]  # by (step, action, when it began to wait, when it started, when it ended)
    steps: Sequence[Array]  # by (step, begin of the step, end of its actions, of the sums, of the optimizer)
    weights: Sequence[int]  # the bytes of each rank's weights
    boundary: float  # the bytes of the tensor between two stages


FEWEST = 3  # steps from which a spread is known


class Sample(NamedTuple):
    """The time of alike actions of one stage."""

    op: str  # `forward`, `full`, `backward`, `weight`, CHECKPOINTED or RECOMPUTED
    kinds: tuple[tuple[int, int], ...]  # the number of layers of each kind in the stage, by kind
    rows: float
    before: str  # what the same rank ran before, see `before`
    crowd: float  # the share of the time in which the other ranks computed too, from 0 to 1
    actions: int  # how many of them a step has
    ms: float  # the median over the steps of the mean over the actions
    low: float  # the 10th percentile over the steps; NaN with fewer than `FEWEST` steps
    high: float  # the 90th


def samples_of(case: Case, kinds: Sequence[int]) -> list[Sample]:
    """Return the samples of a case; `kinds` has the kind of each layer of the model."""
    crowds = _crowds(case)
    found = []
    for rank, row in enumerate(case.schedule.ranks):
        groups: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        for position, action in enumerate(row):
            key = op_of(case.schedule, case.checkpointing, action), action.stage, before(row, position)
            groups[key].append(position)
        took = (case.times[rank][:, :, 2] - case.times[rank][:, :, 1]) / 1e6
        for (op, stage, what), positions in groups.items():
            means = took[:, positions].mean(axis=1)
            low, middle, high = np.percentile(means, [10, 50, 90])
            if len(means) < FEWEST:
                low = high = nan
            first = sum(case.sizes[:stage])
            own = list(kinds[first : first + case.sizes[stage]])
            counts = tuple((kind, own.count(kind)) for kind in dict.fromkeys(own))
            crowd = float(crowds[rank][:, positions].mean())
            times = float(middle), float(low), float(high)
            found.append(Sample(op, counts, case.rows, what, crowd, len(positions), *times))
    return found


def op_of(schedule: Schedule, checkpointing: Checkpointing, action: Action) -> str:
    """Return the name under which a profile has the time of an action."""
    if action.op is Op.W:
        return WEIGHT
    checkpointed = checkpointing.segments_of(action.microbatch, schedule.units)
    if action.op is Op.F:
        return CHECKPOINTED if checkpointed else FORWARD
    if checkpointed:
        return RECOMPUTED
    return BACKWARD if action.op is Op.I else FULL


def before(row: Sequence[Action], position: int) -> str:
    """Return what a rank ran before an action: `forward`, `backward` (also a full one), `weight` or `optimizer`."""
    if position == 0:
        return OPTIMIZER
    return {Op.F: FORWARD, Op.B: BACKWARD, Op.I: BACKWARD, Op.W: WEIGHT}[row[position - 1].op]


def _crowds(case: Case) -> list[Array]:
    """Return, for each rank, by (step, action): the share of its time in which the other ranks computed."""
    count = len(case.times)
    found = [np.zeros(times.shape[:2]) for times in case.times]
    for step in range(len(case.times[0])):
        starts = [times[step, :, 1] for times in case.times]
        ends = [times[step, :, 2] for times in case.times]
        for other in range(count):
            moments = np.stack([starts[other], ends[other]], axis=1).ravel()
            busy = np.concatenate([[0], np.cumsum(np.diff(moments) * (np.arange(len(moments) - 1) % 2 == 0))])
            for rank in range(count):
                if rank == other:
                    continue
                shared = np.interp(ends[rank], moments, busy) - np.interp(starts[rank], moments, busy)
                found[rank][step] += shared / np.maximum(1, ends[rank] - starts[rank]) / (count - 1)
    return found


class Between(NamedTuple):
    """The times of a case outside of its actions, in milliseconds; medians over its steps."""

    nbytes: float  # of a tensor that is sent
    overhead: float  # per action: from its end to the next wait, and the start of one whose input is there already
    hops: list[float]  # of each hop whose receiver waited before the tensor was made
    optimizer: list[tuple[int, float]]  # (bytes of weights, time) of each rank
    head: float  # from the begin of the step to the first wait, of the first rank that begins
    tail: float  # from the end of the last action to the optimizer, of the slowest rank


def between(case: Case) -> Between:
    """Return the times of a case outside of its actions."""
    gaps, early, heads, tails = [], [], [], []
    for times, steps in zip(case.times, case.steps, strict=True):
        gaps.append(((times[:, 1:, 0] - times[:, :-1, 2]).mean(axis=1)) / 1e6 if times.shape[1] > 1 else np.zeros(1))
        heads.append(float(np.median(times[:, 0, 0] - steps[:, 0])) / 1e6)
        tails.append(float(np.median(steps[:, 1] - times[:, -1, 2])) / 1e6)
    hops = []
    for made, waited, ready in _waits(case):
        in_time = made < waited - 100_000  # it has been there for 0.1 ms: no hop is in the wait
        early.append(np.where(in_time, ready - waited, 0).mean() / 1e6)
        waiting = waited < made
        hops += ((ready - made)[waiting] / 1e6).tolist()
    overhead = float(np.median(np.concatenate(gaps))) + (float(np.mean(early)) / 2 if early else 0.0)
    optimizer = [
        (weights, float(np.median(steps[:, 3] - steps[:, 2])) / 1e6)
        for weights, steps in zip(case.weights, case.steps, strict=True)
    ]
    return Between(case.boundary, overhead, hops, optimizer, min(heads), max(tails))


def _waits(case: Case) -> Iterator[tuple[Array, Array, Array]]:
    """Yield, for each action with an input from another rank: when it was made, waited for, and ready, by step."""
    places = {action: (rank, at) for rank, row in enumerate(case.schedule.ranks) for at, action in enumerate(row)}
    for action, (rank, at) in places.items():
        source = case.schedule.source(action)
        if source is not None and places[source][0] != rank:
            sender, sent = places[source]
            yield case.times[sender][:, sent, 2], case.times[rank][:, at, 0], case.times[rank][:, at, 1]
