"""Composes the costs of stages from the times of their layers.

::

    layer      0    1    2    3    4    5
    forward   [2] [1    1    1    1] [3]  ── sizes (2, 4) ──► forward = 3, 6    + a fixed time per action
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

from microp.schedule import Schedule
from microp.settings import Checkpointing
from microp.simulator.costs import Costs


class LayerTimes(NamedTuple):
    """The times of one layer and one microbatch, in milliseconds.

    Attributes:
        forward: F.
        backward: the input gradient.
        weight: the weight gradient, apart from the input gradient.
        full: the undivided backward, which takes less than `backward` + `weight`.
        recompute: the forward once more, right before the backward.
    """

    forward: float
    backward: float
    weight: float
    full: float
    recompute: float


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
    """Return the costs of the schedule's stages, in milliseconds.

    Args:
        layers: the times of every layer of the model, in order.
        schedule: the order; a stage without divided backwards takes `full` for its B.
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
    each = [fixed] * len(sizes) if isinstance(fixed, LayerTimes) else fixed
    stages = [
        LayerTimes(*map(sum, zip(own, *layers[end - size : end], strict=True)))
        for own, end, size in zip(each, accumulate(sizes), sizes, strict=True)
    ]
    split = schedule.split_stages
    is_split = [stage in split for stage in range(len(stages))]
    return Costs(
        forward=tuple(stage.forward for stage in stages),
        backward=tuple(stage.backward if own else stage.full for stage, own in zip(stages, is_split, strict=True)),
        weight=tuple(stage.weight if own else 0 for stage, own in zip(stages, is_split, strict=True)) if split else (),
        full=tuple(stage.full for stage in stages) if split else (),
        recompute=tuple(stage.recompute for stage in stages) if checkpointing.segments else (),
        spared=checkpointing.spared(schedule.chunks) if checkpointing.segments else (),
        latency=latency,
        boundary=tuple(boundary),
        bandwidth=bandwidth,
        reduction=tuple(reduction),
        overhead=tuple(overhead),
    )
