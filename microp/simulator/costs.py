"""The costs of a schedule: how long each action and each hop takes.

::

    stage        0    1    2    3
    forward     [5 ,  5 ,  5 ,  5 ]     one microbatch through one stage
    backward    [10, 10 , 10 , 10 ]     I, its input gradient (all of the backward, if weight is 0)
    weight      [ 0,  0 ,  0 ,  0 ]     its weight gradient
    recompute   [ 5,  5 ,  5 ,  5 ]     its forward once more, as a part of its B or I
    boundary    [64, 64 , 64 , 64 ]     bytes of the tensor that enters the stage
                   ╰──╯
                   a hop: latency + boundary[1] / bandwidth, in either direction
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from math import inf
from numbers import Rational
from typing import Any, NamedTuple

import numpy as np

from microp.schedule import Action, Op, Schedule
from microp.settings import Checkpointing
from microp.simulator.link_model import LinkModel

OPTIONAL = ("weight", "full", "pair", "recompute", "boundary", "reduction", "overhead")
PER_STAGE = ("forward", "backward", *OPTIONAL)  # the costs that have a value per stage


@dataclass(frozen=True)
class Costs:
    """Times per stage, in any one unit and any number type; integers and Fractions stay exact.

    A tuple has one value per stage; an empty one means 0 on every stage (but `spared` lists microbatches, and
    `shares` and `sizes` have one factor for each).

    Attributes:
        forward: F of one microbatch.
        backward: I, the input gradient of one microbatch.
        weight: W, the weight gradient of one microbatch. A B, the full backward, takes both.
        full: a full backward on a stage that also has divided ones, if it does not take
            `backward` + `weight`: dividing a backward costs time.
        pair: a pair of the stage's forward and backward, from the longer of the two to their sum; empty: a pair is
            its forward and then its backward, each with its own inputs and outputs.
        latency: the part of a hop that does not depend on the tensor's size: one value, or one per
            stage, for the hop between it and the stage before it.
        recompute: the extra time of a B or I whose activations are recomputed.
        spared: the microbatches that are not recomputed; `(chunks - 1,)` is except_last.
        shares: for each microbatch, or each unit of a schedule with slices, its part of the times above; empty: 1.
        sizes: the same of the bytes of `boundary`; empty: as `shares`.
        boundary: bytes of the tensor that enters the stage; its gradient has the same size.
        bandwidth: bytes per unit of time of one hop.
        transfer: the link model: the rule for the times of a hop.
        reduction: the sum of the stage's gradients over the replicas or copies, see `trace.reductions`.
        overhead: the engine's own time after an action, in which the rank computes nothing.

    Raises:
        ValueError: lists differ in length, a value is negative, or `bandwidth` is not above 0;
            the message names the key.
    """

    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    weight: tuple[Any, ...] = ()
    full: tuple[Any, ...] = field(default=(), kw_only=True)
    pair: tuple[Any, ...] = field(default=(), kw_only=True)
    latency: Any = 0
    recompute: tuple[Any, ...] = ()
    spared: tuple[int, ...] = ()
    shares: tuple[Any, ...] = ()
    sizes: tuple[Any, ...] = ()
    boundary: tuple[Any, ...] = ()
    bandwidth: Any = inf
    transfer: LinkModel = field(default_factory=LinkModel)
    reduction: tuple[Any, ...] = ()
    overhead: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.check(len(self.forward))
        for microbatch in self.spared:
            if microbatch < 0:
                raise ValueError(f"costs.spared has {microbatch}: microbatches go from 0 to chunks - 1")
        for name in ("shares", "sizes"):
            for unit, share in enumerate(getattr(self, name)):
                _check_sign(f"costs.{name}[{unit}]", share)
        if not isinstance(self.latency, tuple):
            _check_sign("costs.latency", self.latency)
        if self.pair and (self.shares or type(self.transfer) is not LinkModel):
            what = (
                "microbatches or slices that differ" if self.shares else "a rank or a link that is busy with messages"
            )
            raise ValueError(f"the time of a pair is not known for {what}: set no costs.pair, or no device.pair_ms")
        if not self.bandwidth > 0:
            raise ValueError(f"costs.bandwidth={self.bandwidth}: give bytes per unit of time, above 0")

    def check(self, stages: int) -> None:
        """Raise ValueError unless there is a value for each of `stages` stages."""
        optional = {name: getattr(self, name) for name in OPTIONAL}
        given = {name: values for name, values in optional.items() if values}
        if isinstance(self.latency, tuple):
            given["latency"] = self.latency
        _check_stages(stages, forward=self.forward, backward=self.backward, **given)

    def of(self, action: Action) -> Any:
        """Return how long `action` takes."""
        stage, share = action.stage, self.share(action.microbatch)
        if action.op is Op.F:
            return self.forward[stage] * share
        if action.op is Op.W:
            return at(self.weight, stage) * share
        backward = self.backward[stage] if action.op is Op.I else self.full_backward(stage)
        return self.recomputation(action) + backward * share

    def halves(self, forward: Action, backward: Action) -> tuple[Any, Any]:
        """Return the two parts of the time of a pair, in the proportion of the times of its actions.

        A pair of two stages takes the mean of theirs, and a recomputation besides. It is never shorter than the longer
        of its actions, nor longer than both.
        """
        first, second = self.of(forward), self.of(backward)
        mean = ratio(self.pair[forward.stage] + self.pair[backward.stage], 2)
        both = min(max(mean + self.recomputation(backward), first, second), first + second)
        part = ratio(both * first, first + second) if both else 0
        return part, both - part

    def share(self, microbatch: int) -> Any:
        """Return the part of the stages' times that a microbatch takes, or a unit of a schedule with slices."""
        return self.shares[microbatch] if self.shares else 1

    def full_backward(self, stage: int) -> Any:
        """Return how long an undivided backward of `stage` takes, without recomputation."""
        return self.full[stage] if self.full else self.backward[stage] + at(self.weight, stage)

    def recomputation(self, action: Action) -> Any:
        """Return the time that a backward takes for recomputation."""
        is_spared = action.microbatch in self.spared
        return 0 if is_spared else at(self.recompute, action.stage) * self.share(action.microbatch)

    def hop(self, stage: int, microbatch: int = 0) -> Any:
        """Return how long a microbatch's tensor takes between the ranks of `stage - 1` and `stage`."""
        sizes = self.sizes or self.shares
        size = at(self.boundary, stage) * (sizes[microbatch] if sizes else 1)
        latency = self.latency[stage] if isinstance(self.latency, tuple) else self.latency
        return latency + ratio(size, self.bandwidth) if size and self.bandwidth != inf else latency


def for_stages(stages: int, copies: int = 1, **given: Any) -> Costs:
    """Return the costs of `stages` stages from a user's values: one per stage, or one for all.

    Args:
        copies: the schedule's copies of the model; values for the stages of one count for all.
        given: attributes of `Costs`; None means not given.

    Raises:
        ValueError: `forward` or `backward` is missing, or `Costs` refuses the values.
    """
    known = {name: value for name, value in given.items() if value is not None}
    for name in ("forward", "backward"):
        if name not in known:
            raise ValueError(f"costs.{name} is missing: give one value per stage, or one for all")
    for name in PER_STAGE:
        if name in known:
            known[name] = of_stages(known[name], stages, copies)
    _check_stages(stages, **{name: known[name] for name in PER_STAGE if name in known})
    return check_pairs(Costs(**known))


def of_stages(value: Any, stages: int, copies: int) -> tuple[Any, ...]:
    """Return a value of each stage, from one for all, or one for each stage of the model, of which there are copies."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * stages
    return values * copies if len(values) * copies == stages else values


def even_shares(schedule: Schedule) -> tuple[Any, ...]:
    """Return the `shares` of a schedule whose slices take their microbatch's times evenly; () without slices."""
    return unit_shares(schedule)["shares"]


def unit_shares(
    schedule: Schedule, per_microbatch: Sequence[Any] = (), per_slice: Sequence[Any] = (), keys: str = "costs"
) -> dict[str, tuple[Any, ...]]:
    """Return the `shares` and `sizes` of units that differ: microbatches of other lengths, slices that attend to more.

    ::

        per_microbatch=[1, 3]  per_slice=[1, 2]     shares 1/3 2/3 | 1 2      sizes 1/2 1/2 | 3/2 3/2

    Args:
        per_microbatch: for each microbatch the factor of its times and bytes; empty: 1.
        per_slice: for each slice of a microbatch its part of the microbatch's times, in any unit; empty: all alike.
        keys: the group of the two keys, for messages.

    Raises:
        ValueError: there is not one number for each microbatch, or not one for each slice.
    """
    for key, values, count, what in (
        ("per_microbatch", per_microbatch, schedule.chunks, "microbatches"),
        ("per_slice", per_slice, schedule.slices, "slices of a microbatch"),
    ):
        if values and len(values) != count:
            raise ValueError(f"{keys}.{key} has {len(values)} values for {count} {what}: give one for each, or []")
        for place, value in enumerate(values):
            _check_sign(f"{keys}.{key}[{place}]", value)
    if not per_microbatch and not per_slice and schedule.slices == 1:
        return {"shares": (), "sizes": ()}
    factors, parts = per_microbatch or (1,) * schedule.chunks, per_slice or (1,) * schedule.slices
    total = sum(parts) or 1
    return {
        "shares": tuple(ratio(factor * part, total) for factor in factors for part in parts),
        "sizes": tuple(ratio(factor, len(parts)) for factor in factors for _ in parts) if per_slice else (),
    }


def check_pairs(costs: Costs) -> Costs:
    """Return the costs. Raises ValueError if a pair is shorter than the longer of its actions, or longer than both."""
    for stage, pair in enumerate(costs.pair):
        forward, backward = costs.forward[stage], costs.full_backward(stage)
        if not max(forward, backward) <= pair <= forward + backward:
            raise ValueError(
                f"a pair of stage {stage} takes {float(pair):g}: give costs.pair, or device.pair_ms, so that it takes "
                f"from {float(max(forward, backward)):g}, its longer action, to {float(forward + backward):g}, both"
            )
    return costs


class LayerTimes(NamedTuple):
    """The times of one layer and one microbatch, in milliseconds."""

    forward: float
    backward: float
    weight: float  # the weight gradient, apart from the input gradient
    full: float  # the undivided backward, which takes less than `backward` + `weight`
    recompute: float  # the forward once more, right before the backward


NO_TIMES = LayerTimes(0, 0, 0, 0, 0)


def costs_of(
    layers: Sequence[LayerTimes],
    sizes: Sequence[int],
    schedule: Schedule,
    checkpointing: Checkpointing,
    *,
    fixed: LayerTimes | Sequence[LayerTimes] = NO_TIMES,
    latency: Any = 0,
    boundary: Sequence[float] = (),
    bandwidth: float = inf,
    reduction: Sequence[float] = (),
    overhead: Sequence[float] = (),
) -> Costs:
    """Return the costs of the schedule's stages, in milliseconds, composed from the times of their layers.

    ::

        layer      0    1    2    3    4    5
        forward   [2] [1    1    1    1] [3]  ── sizes (2, 4) ──► forward = 3, 6    + a fixed time per action

    Args:
        layers: the times of every layer of the model, in order, once for each of the schedule's copies of it.
        schedule: the order; a stage without divided backwards takes `full` for its B, and one whose layers have no
            backward at all runs none again.
        fixed: the part of an action's time that does not depend on its layers; one for all stages, or one for each.
        latency: the part of a hop that does not depend on the tensor's size, as in `Costs`.
        boundary: the bytes of the tensor that enters each stage.
        bandwidth: bytes per millisecond of a hop.
        reduction: the sum of each stage's gradients over the replicas.
        overhead: the engine's own time after each stage's actions.

    Raises:
        ValueError: the sizes do not add up to the layers, or are not those of the schedule's stages.
    """
    if sum(sizes) != len(layers) or len(sizes) != schedule.stages:
        raise ValueError(
            f"partition {list(sizes)} does not cut {len(layers)} layers into the schedule's {schedule.stages} stages"
        )
    fixed_times = [fixed] * len(sizes) if isinstance(fixed, LayerTimes) else fixed
    stages = [layers[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]
    times = [
        LayerTimes(*map(sum, zip(fixed_time, *stage, strict=True)))
        for fixed_time, stage in zip(fixed_times, stages, strict=True)
    ]
    divided = {stage for stage, _ in schedule.input_gradients}
    backwards = (sum(layer.full for layer in each) for each in stages)
    again = (time.recompute if backward else 0 for time, backward in zip(times, backwards, strict=True))
    return Costs(
        forward=tuple(time.forward for time in times),
        backward=tuple(time.backward if stage in divided else time.full for stage, time in enumerate(times)),
        weight=tuple(time.weight if stage in divided else 0 for stage, time in enumerate(times)) if divided else (),
        full=tuple(time.full for time in times) if divided else (),
        recompute=tuple(again) if checkpointing.segments else (),
        spared=checkpointing.spared(schedule.units) if checkpointing.segments else (),
        shares=even_shares(schedule),
        latency=latency,
        boundary=tuple(boundary),
        bandwidth=bandwidth,
        reduction=tuple(reduction),
        overhead=tuple(overhead),
    )


def _check_stages(stages: int, **given: Sequence[Any]) -> None:
    """Raise ValueError unless each of `given` has one value per stage, none of them negative."""
    for name, values in given.items():
        if len(values) != stages or not values:
            raise ValueError(
                f"costs.{name} has {len(values)} {'value' if len(values) == 1 else 'values'} for {stages} stages: "
                "give one per stage, or one for all"
            )
        for stage, value in enumerate(values):
            _check_sign(f"costs.{name}[{stage}]", value)


def _check_sign(key: str, value: Any) -> None:
    right = value >= 0
    if not (right if isinstance(right, bool) else right.all()):  # a column has a number for each of many costs
        wrong = "negative" if np.any(value < 0) else "not a number"
        raise ValueError(f"{key}={value} is {wrong}: give a number from 0 up")


def at(values: Sequence[Any], stage: int) -> Any:
    """Return the value of `stage`; an empty list means 0 everywhere."""
    return values[stage] if values else 0


def ratio(dividend: Any, divisor: Any) -> Any:
    """Return `dividend / divisor`, exact if both are integers or Fractions (and then an int, if it is whole)."""
    if not isinstance(dividend, Rational) or not isinstance(divisor, Rational):
        return dividend / divisor
    quotient = Fraction(dividend) / Fraction(divisor)
    return quotient.numerator if quotient.denominator == 1 else quotient
