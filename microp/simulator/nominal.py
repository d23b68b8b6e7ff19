"""Computes the nominal costs of a job: an emulated device's times, or one unit per layer.

::

    device.forward_ms=5 device.per=[layer]      stages of 6, 5, 5 layers ──► forward = 30, 25, 25 ms
    device.speed=[1,1,0.5]                                                          30, 25, 50 ms
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from microp.job import Workload
from microp.schedule import Schedule
from microp.settings import DeviceSettings, EmulatedSettings
from microp.simulator.costs import Costs, for_stages, of_stages, ratio, unit_shares


def nominal_costs(device: DeviceSettings, workload: Workload, rows: float | None = None) -> Costs:
    """Return the costs that are known without a measurement.

    Args:
        device: an emulated device gives its nominal times, in milliseconds; on any other device
            each of F, I and W takes one unit per layer.
        rows: the number of rows of a microbatch; None for the mean over the microbatches.

    Raises:
        ValueError: a list of times does not have one value per stage; the message names the key.
    """
    if not isinstance(device, EmulatedSettings):
        sizes = tuple(Fraction(size) for size in workload.layers)
        return slowed(Costs(forward=sizes, backward=sizes, weight=sizes), device, workload.schedule)
    rows = sum(workload.rows) / len(workload.rows) if rows is None else rows
    of_layers = [layers if "layer" in device.per else 1 for layers in workload.layers]
    scale = [factor * (rows if "row" in device.per else 1) for factor in of_layers]

    def times(key: str, value: Any, scale: Sequence[Any] = scale) -> list[Any] | None:
        return None if value is None else _scaled(key, value, scale, workload.schedule.copies)

    forward, backward = times("forward_ms", device.forward_ms), times("backward_ms", device.backward_ms)
    weight, full = times("weight_ms", device.weight_ms), times("full_ms", device.full_ms)
    if workload.schedule.input_gradients and weight is None and backward is not None:
        weight = backward = [time / 2 for time in backward]
    pair = times("pair_ms", device.pair_ms) if workload.schedule.pairs else None
    if not workload.schedule.input_gradients and full is not None:
        backward, weight, full = full, None, None
    recompute = times("recompute_ms", device.forward_ms if device.recompute_ms is None else device.recompute_ms)
    checkpointing = workload.checkpointing
    costs = for_stages(
        len(workload.layers),
        workload.schedule.copies,
        forward=forward,
        backward=backward,
        weight=weight,
        full=full,
        pair=pair,
        recompute=recompute if checkpointing.segments else None,
        spared=checkpointing.spared(workload.schedule.units),
        **unit_shares(workload.schedule, device.per_microbatch, device.per_slice, "device"),
        latency=device.latency_ms,
        reduction=times("reduce_ms", device.reduce_ms, of_layers),
        overhead=device.overhead_ms or None,
    )
    return slowed(costs, device, workload.schedule)


def nominal_optimizer(device: EmulatedSettings, layers: Sequence[int], copies: int = 1) -> list[float]:
    """Return the least time of the optimizer's step on each stage's weights, in milliseconds.

    Raises:
        ValueError: a list of times does not have one value per stage; the message names the key.
    """
    scale = [count if "layer" in device.per else 1 for count in layers]
    return _scaled("optimizer_ms", device.optimizer_ms, scale, copies)


def _scaled(key: str, value: Any, scale: Sequence[Any], copies: int) -> list[Any]:
    """Return a nominal time of each stage, from a list or from one value for all."""
    stages = len(scale)
    given = of_stages(value, stages, copies)
    if len(given) != stages:
        raise ValueError(
            f"device.{key} has {len(given)} values for {stages} stages: give one per stage, or one for all"
        )
    return [time * factor for time, factor in zip(given, scale, strict=True)]


def slowed(costs: Costs, device: DeviceSettings, schedule: Schedule) -> Costs:
    """Return the costs with the times of each stage's actions divided by the speed of its rank."""
    if not device.speed:
        return costs
    speeds = [device.speed_of(rank) for rank in schedule.placement.values()]
    slower: dict[str, Any] = {}
    for name in ("forward", "backward", "weight", "full", "pair", "recompute"):
        if times := getattr(costs, name):
            slower[name] = tuple(map(ratio, times, speeds))
    return replace(costs, **slower)
