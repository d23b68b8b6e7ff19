"""What each action of a schedule costs.

::

    stage        0    1    2    3
    forward     [5 ,  5 ,  5 ,  5 ]     one microbatch through one stage
    backward    [10, 10 , 10 , 10 ]     its input gradient (all of the backward, if weight is 0)
    weight      [ 0,  0 ,  0 ,  0 ]     its weight gradient
    latency      1                      one hop between two ranks
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from microp.schedule import Action, Op, Schedule
from microp.trace import Span, median_times


@dataclass(frozen=True)
class Costs:
    """Times per stage, in any one unit and any number type.

    Attributes:
        forward: F of one microbatch, a value a stage.
        backward: the input gradient of one microbatch, a value a stage.
        weight: the weight gradient of one microbatch, a value a stage; empty means 0. A B
            that has no W of its own is the full backward and takes both.
        latency: one hop; a consumer on another rank starts no earlier than the
            producer's end plus this.

    Raises:
        ValueError: the lists differ in length, or a value is negative.
    """

    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    weight: tuple[Any, ...] = ()
    latency: Any = 0

    def __post_init__(self) -> None:
        lengths = {len(self.forward), len(self.backward), len(self.weight) or len(self.forward)}
        if len(lengths) != 1:
            raise ValueError(f"costs of {sorted(lengths)} stages: give every list one value a stage")
        for name in ("forward", "backward", "weight"):
            if any(value < 0 for value in getattr(self, name)):
                raise ValueError(f"costs.{name}={getattr(self, name)}: times cannot be negative")
        if self.latency < 0:
            raise ValueError(f"costs.latency={self.latency}: times cannot be negative")

    def of(self, action: Action, split: bool) -> Any:
        """How long `action` takes; `split`: its backward is divided into B and W."""
        stage = action.stage
        if action.op is Op.F:
            return self.forward[stage]
        weight = self.weight[stage] if self.weight else 0
        if action.op is Op.W:
            return weight
        return self.backward[stage] if split else self.backward[stage] + weight


def equal(stages: int, forward: Any, backward: Any, latency: Any = 0) -> Costs:
    """The same times on every stage."""
    return Costs((forward,) * stages, (backward,) * stages, latency=latency)


def measured(schedule: Schedule, spans: Iterable[Span]) -> Costs:
    """The median time of each (stage, op) over `spans` of one or more steps, and of a hop.

    A hop is timed where the consumer was already waiting for it: from the producer's end
    to the moment the consumer held the tensor. Without such a case it is 0.
    """
    spans = list(spans)
    times = median_times(spans)
    stages = range(schedule.stages)
    return Costs(
        forward=tuple(times[stage, Op.F] for stage in stages),
        backward=tuple(times[stage, Op.B] for stage in stages),
        weight=tuple(times.get((stage, Op.W), 0) for stage in stages),
        latency=median(_hops(schedule, spans) or [0]),
    )


def _hops(schedule: Schedule, spans: list[Span]) -> list[Any]:
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        by_rank[span.rank].append(span)
    ends = {span.action: span.end for span in spans}
    hops = []
    for row in by_rank.values():
        for previous, span in pairwise(row):
            source = schedule.source(span.action)
            if source is None or schedule.placement[source.stage] == span.rank or source not in ends:
                continue
            if previous.end < ends[source] < span.ready:
                hops.append(span.ready - ends[source])
    return hops
