"""What each action and each hop of a schedule costs.

::

    stage        0    1    2    3
    forward     [5 ,  5 ,  5 ,  5 ]     one microbatch through one stage
    backward    [10, 10 , 10 , 10 ]     its input gradient (all of the backward, if weight is 0)
    weight      [ 0,  0 ,  0 ,  0 ]     its weight gradient
    recompute   [ 5,  5 ,  5 ,  5 ]     its forward once more, at the head of its B
    boundary    [64, 64 , 64 , 64 ]     bytes of the tensor that enters the stage
                   ╰──╯
                   a hop: latency + boundary[1] / bandwidth, either way
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import inf
from numbers import Rational
from statistics import median
from typing import Any

from microp.schedule import Action, Op, Schedule
from microp.trace import Span, median_times
from microp.transfer import Asynchronous, Transfer


@dataclass(frozen=True)
class Costs:
    """Times per stage, in any one unit and any number type; integers and Fractions stay exact.

    A tuple has a value a stage; empty means 0 on every stage (but `spared` has microbatches).

    Attributes:
        forward: F of one microbatch.
        backward: the input gradient of one microbatch.
        weight: the weight gradient of one microbatch. A B that has no W of its own is the
            full backward and takes both.
        latency: the part of a hop that does not depend on the tensor's size.
        recompute: what B takes longer where activations are recomputed.
        ahead: the part of `recompute` that does not wait for the gradient: 0 is late
            recomputation, all of it is early.
        spared: the microbatches that are not recomputed; `(chunks - 1,)` is except_last.
        boundary: bytes of the tensor that enters the stage; its gradient has as many.
        bandwidth: bytes per unit of time of one hop.
        transfer: the rule by which a hop is charged.
        reduction: the sum of the stage's gradients over the replicas, once the last is there.

    Raises:
        ValueError: lists that differ in length, a negative value, no bandwidth; each names the key.
    """

    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    weight: tuple[Any, ...] = ()
    latency: Any = 0
    recompute: tuple[Any, ...] = ()
    ahead: tuple[Any, ...] = ()
    spared: tuple[int, ...] = ()
    boundary: tuple[Any, ...] = ()
    bandwidth: Any = inf
    transfer: Transfer = field(default_factory=Asynchronous)
    reduction: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.check(len(self.forward))
        check_spared("costs", self.spared)
        _check_sign("costs.latency", self.latency)
        if not self.bandwidth > 0:
            raise ValueError(f"costs.bandwidth={self.bandwidth}: give bytes per unit of time, above 0")
        for stage, part in enumerate(self.ahead):
            if part > at(self.recompute, stage):
                raise ValueError(
                    f"costs.ahead[{stage}]={part} is more than costs.recompute[{stage}]="
                    f"{at(self.recompute, stage)}: it is a part of it"
                )

    def check(self, stages: int) -> None:
        """Raise ValueError unless these are the costs of `stages` stages."""
        optional = {name: getattr(self, name) for name in ("weight", "recompute", "ahead", "boundary", "reduction")}
        given = {name: values for name, values in optional.items() if values}
        check_stages("costs", stages, forward=self.forward, backward=self.backward, **given)

    def of(self, action: Action, split: bool) -> Any:
        """How long `action` takes; `split`: its backward is divided into B and W."""
        stage = action.stage
        if action.op is Op.F:
            return self.forward[stage]
        weight = at(self.weight, stage)
        if action.op is Op.W:
            return weight
        return self.again(action) + self.backward[stage] + (0 if split else weight)

    def again(self, action: Action) -> Any:
        """The part of a B that is recomputation."""
        return 0 if action.microbatch in self.spared else at(self.recompute, action.stage)

    def lead(self, action: Action) -> Any:
        """How long `action` can run before the tensor from another rank is there."""
        if action.op is not Op.B or action.microbatch in self.spared:
            return 0
        return at(self.ahead, action.stage)

    def hop(self, stage: int) -> Any:
        """How long a tensor takes between the ranks of `stage - 1` and `stage`."""
        size = at(self.boundary, stage)
        return self.latency + ratio(size, self.bandwidth) if size and self.bandwidth != inf else self.latency


_PER_STAGE = ("forward", "backward", "weight", "recompute", "ahead", "boundary", "reduction")


def for_stages(stages: int, **given: Any) -> Costs:
    """Costs of `stages` stages, from what a user gives: a value a stage, or one for all.

    Args:
        given: attributes of `Costs`; None stands for one that was not given.

    Raises:
        ValueError: `forward` or `backward` is missing, and what `Costs` raises.
    """
    known = {name: value for name, value in given.items() if value is not None}
    for name in ("forward", "backward"):
        if name not in known:
            raise ValueError(f"costs.{name} is missing: give one value a stage, or one for all")
    for name in _PER_STAGE:
        if name in known:
            value = known[name]
            known[name] = tuple(value) if isinstance(value, Sequence) else (value,) * stages
    check_stages("costs", stages, **{name: known[name] for name in _PER_STAGE if name in known})
    return Costs(**known)


def equal(stages: int, forward: Any, backward: Any, latency: Any = 0) -> Costs:
    """The same times on every stage."""
    return for_stages(stages, forward=forward, backward=backward, latency=latency)


def check_stages(room: str, stages: int, **given: Sequence[Any]) -> None:
    """Raise ValueError unless each of `given` has a value a stage, none of them negative."""
    for name, values in given.items():
        if len(values) != stages or not values:
            raise ValueError(
                f"{room}.{name} has {len(values)} {'value' if len(values) == 1 else 'values'} for {stages} stages: "
                "give one a stage, or one for all"
            )
        for stage, value in enumerate(values):
            _check_sign(f"{room}.{name}[{stage}]", value)


def check_spared(room: str, microbatches: Iterable[int]) -> None:
    """Raise ValueError unless these can be microbatches."""
    for microbatch in microbatches:
        if microbatch < 0:
            raise ValueError(f"{room}.spared has {microbatch}: microbatches go from 0 to chunks - 1")


def _check_sign(key: str, value: Any) -> None:
    if not value >= 0:
        found = "negative" if value < 0 else "not a number"
        raise ValueError(f"{key}={value} is {found}: give a number from 0 up")


def at(values: Sequence[Any], stage: int) -> Any:
    """The value of `stage`; an empty list means 0 everywhere."""
    return values[stage] if values else 0


def ratio(dividend: Any, divisor: Any) -> Any:
    """`dividend / divisor`, exact if both are integers or Fractions (and then an int, if it is whole)."""
    if not isinstance(dividend, Rational) or not isinstance(divisor, Rational):
        return dividend / divisor
    quotient = Fraction(dividend) / Fraction(divisor)
    return quotient.numerator if quotient.denominator == 1 else quotient


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


def of_steps(schedule: Schedule, steps: Sequence[Sequence[Mapping[str, Any]]], spans: Iterable[Span]) -> Costs:
    """The median action times over several steps, and the hop of the one whose spans these are; in milliseconds.

    Args:
        schedule: what was run.
        steps: of each step the ranks' rows, in the order of the ranks; see `records`.
        spans: in nanoseconds.
    """

    def times(op: Op) -> tuple[float, ...]:
        return tuple(
            median(step[schedule.placement[stage]]["action_ms"].get(f"{stage}{op}", 0.0) for step in steps)
            for stage in range(schedule.stages)
        )

    return Costs(times(Op.F), times(Op.B), times(Op.W), measured(schedule, spans).latency / 1e6)


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
