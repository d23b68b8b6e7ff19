"""Where a planner's times come from: any partition of a workload is priced by them.

::

    Prices ─┬ costs(workload) ─────► Costs, for the simulator
            ├ loads(workload) ─────► Loads, for the exact cut
            └ forecast(workload) ──► what a run's step takes, with everything that is known
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

from microp.job import Workload
from microp.profiling import (
    Forecast,
    Profile,
    forecast,
    last_ends,
    last_optimizer,
    optimizer_times,
    stage_costs,
)
from microp.settings import DeviceSettings, EmulatedSettings, EstimateSettings, ModelSettings
from microp.simulator import (
    NO_TIMES,
    PER_STAGE,
    Costs,
    LayerTimes,
    costs_of,
    nominal_costs,
    nominal_optimizer,
    simulate,
    slowed,
)
from microp.trace import bubble_fraction


@dataclass(frozen=True)
class Loads:
    """What the stages take in a step: `scale[s] * (sum of its layers) + fixed[s]`.

    Attributes:
        layers: the time of each layer.
        scale: of each stage, for example 2 on a rank of half the speed.
        fixed: the time of each stage that does not depend on its layers.
    """

    layers: tuple[float, ...]
    scale: tuple[float, ...]
    fixed: tuple[float, ...]


class Prices(ABC):
    """The times of actions, for any partition of a workload.

    Attributes:
        source: where the times come from, as a sentence's subject: `the nominal times of device=emulated`.
        is_known: false if nothing is known, and every layer counts the same.
        kinds: for each layer, a number that equal ones share; empty if all may differ.
    """

    source: str
    is_known: bool
    kinds: Sequence[int] = ()

    @abstractmethod
    def costs(self, workload: Workload) -> Costs:
        """Return the costs of the workload's stages."""

    @abstractmethod
    def loads(self, workload: Workload) -> Loads:
        """Return how long stages take in a step; the sizes in `workload.layers` count only by their sum."""

    def fastest(self, rows: float) -> float:
        """Return the least share of the simulated time of its actions that a run's step takes."""
        return 1.0

    def forecast(self, workload: Workload, batch: tuple[float, float] = (0, 0), replicas: int = 1) -> Forecast:
        """Return what is known of a run; here its actions and the sums over the replicas, if these have a time.

        Args:
            workload: what one replica runs.
            batch: as in `Ranks`.
            replicas: how many run it.
        """
        costs = self.costs(workload)
        spans = simulate(workload.schedule, costs)
        known = self.is_known and (replicas == 1 or bool(costs.reduction))
        step_ms = max(last_ends(workload.schedule, spans, costs).values()) if known else None
        return Forecast(step_ms, float(bubble_fraction(spans)) if self.is_known else None, None, self.source)


class NominalPrices(Prices):
    """An emulated device's nominal times; on any other device each of F, I and W takes one unit per layer and row.

    Args:
        profile: of the model on this machine, which takes its own time for the optimizer and between two actions; None
            if there is none, and these times are left out.
    """

    def __init__(
        self, device: DeviceSettings, profile: Profile | None = None, kinds: Sequence[int] = (), backend: str = ""
    ) -> None:
        self._device, self._profile, self.kinds, self._backend = device, profile, kinds, backend
        self.is_known = device.is_emulated
        self.source = f"the nominal times of device={device.name}" if self.is_known else "one unit per layer and row"

    def costs(self, workload: Workload) -> Costs:
        costs = nominal_costs(self._device, workload)
        floats: dict[str, Any] = {name: tuple(map(float, getattr(costs, name))) for name in PER_STAGE}
        costs = replace(costs, **floats)  # Fractions are slow to add up
        if self.is_known:
            return costs
        rows = sum(workload.rows) / len(workload.rows)
        times = (tuple(rows * time for time in each) for each in (costs.forward, costs.backward, costs.weight))
        forward, backward, weight = times
        checkpointing = workload.checkpointing
        spared = checkpointing.spared(workload.schedule.units) if checkpointing.segments else ()
        again = forward if checkpointing.segments else ()
        return replace(costs, forward=forward, backward=backward, weight=weight, recompute=again, spared=spared)

    def forecast(self, workload: Workload, batch: tuple[float, float] = (0, 0), replicas: int = 1) -> Forecast:
        if not isinstance(self._device, EmulatedSettings):
            return Forecast(None, None, None, "no profile")
        costs, schedule = self.costs(workload), workload.schedule
        optimizer, edges = nominal_optimizer(self._device, workload.layers), 0.0
        if self._profile is not None:
            layers = self._profile.layer_memory(self.kinds, bool(schedule.input_gradients))
            optimizer = list(map(max, optimizer, optimizer_times(self._profile, workload, layers)))
            edges = sum(self._profile.edges)
            overhead = max(self._device.overhead_ms, self._profile.transport(self._backend).overhead)
            costs = replace(costs, overhead=(overhead,) * schedule.stages)
        spans = simulate(schedule, costs)
        step_ms = None
        if replicas == 1 or costs.reduction:  # else the sums over the replicas take their real time, which is not known
            step_ms = edges + last_optimizer(schedule, last_ends(schedule, spans, costs), optimizer)
        return Forecast(step_ms, float(bubble_fraction(spans)), None, self.source)

    def loads(self, workload: Workload) -> Loads:
        """Every layer is the same to nominal times, and a stage's time is linear in the number of its layers."""
        stages, layers = workload.schedule.stages, sum(workload.layers) // workload.schedule.copies
        one, two = (stage_loads(workload, self.costs(workload._replace(layers=(count,) * stages))) for count in (1, 2))
        return Loads(
            layers=(1.0,) * layers,
            scale=tuple(more - less for less, more in zip(one, two, strict=True)),
            fixed=tuple(2 * less - more for less, more in zip(one, two, strict=True)),
        )


class LayerPrices(Prices):
    """Times of each layer, added up over a stage.

    Args:
        layers: the times of each layer for a microbatch, in order.
        fixed: the part of an action's time that does not depend on its layers.
        hops: `latency`, `boundary` (the bytes between any two layers), `bandwidth`, as for `costs_of`.
    """

    is_known = True

    def __init__(
        self,
        source: str,
        layers: Sequence[LayerTimes],
        fixed: LayerTimes = NO_TIMES,
        device: DeviceSettings | None = None,
        *,
        latency: float = 0,
        boundary: float = 0,
        bandwidth: float = inf,
    ) -> None:
        self.source, self._layers, self._fixed, self._device = source, layers, fixed, device
        self._latency, self._boundary, self._bandwidth = latency, boundary, bandwidth
        self.kinds = [layers.index(layer) for layer in layers]

    def costs(self, workload: Workload) -> Costs:
        costs = costs_of(
            [*self._layers] * workload.schedule.copies,
            workload.layers,
            workload.schedule,
            workload.checkpointing,
            fixed=self._fixed,
            latency=self._latency,
            boundary=(0.0, *(self._boundary,) * (workload.schedule.stages - 1)),
            bandwidth=self._bandwidth,
        )
        return costs if self._device is None else slowed(costs, self._device, workload.schedule)

    def loads(self, workload: Workload) -> Loads:
        """A schedule that divides some of its backwards counts with their share on every stage."""
        schedule, again = workload.schedule, 0.0
        divided = len(schedule.input_gradients) / (schedule.depth * schedule.units)
        if workload.checkpointing.segments:
            again = 1 - len(workload.checkpointing.spared(schedule.units)) / schedule.units

        def step(times: LayerTimes) -> float:
            backward = (1 - divided) * times.full + divided * (times.backward + times.weight)
            return schedule.chunks * (times.forward + backward + again * times.recompute)

        ranks = tuple(schedule.placement.values())
        speeds = [self._device.speed_of(rank) if self._device else 1.0 for rank in ranks]
        return Loads(
            layers=tuple(map(step, self._layers)),
            scale=tuple(1 / speed for speed in speeds),
            fixed=tuple(step(self._fixed) / speed for speed in speeds),
        )


class EstimatedPrices(Prices):
    """Times from what each layer computes and moves; see `EstimateSettings`.

    On a device of which nothing is known the mean layer takes one unit per row, and an operation takes as long as a
    tenth of a byte: then only the ratios count.
    """

    def __init__(self, device: DeviceSettings, model: ModelSettings) -> None:
        self._device, self._model, self.kinds = device, model, model.kinds
        self.is_known = isinstance(device, EstimateSettings)
        self.source = "no times are known, layers are weighed by their FLOPs and bytes"
        if isinstance(device, EstimateSettings):
            self.source = (
                f"estimated, not measured: FLOPs and bytes with device.tflops={device.tflops:g}, "
                f"device.gb_per_s={device.gb_per_s:g}"
            )

    def costs(self, workload: Workload) -> Costs:
        return self._of(workload).costs(workload)

    def loads(self, workload: Workload) -> Loads:
        return self._of(workload).loads(workload)

    def _of(self, workload: Workload) -> LayerPrices:
        model, device, rows = self._model, self._device, sum(workload.rows) / len(workload.rows)
        speeds, hop = (10.0, 1.0), 0.0
        if isinstance(device, EstimateSettings):
            speeds = device.tflops * 1e9, device.gb_per_s * 1e6  # per millisecond
            hop = device.latency_ms
        known = {kind: self._forward(kind, rows, *speeds) for kind in set(model.kinds)}
        times = [known[kind] for kind in model.kinds]
        if not self.is_known:
            unit = sum(times) / len(times) / rows or 1.0
            times = [time / unit for time in times]
        backwards = [time if layer > model.first_trained else 0.0 for layer, time in enumerate(times)]
        weights = [0.0 if layer in model.frozen else time for layer, time in enumerate(times)]
        link = getattr(device, "link_gb_per_s", None)
        return LayerPrices(
            self.source,
            [LayerTimes(*each, sum(each[1:]), each[0]) for each in zip(times, backwards, weights, strict=True)],
            device=device,
            latency=hop,
            boundary=self._entering(min(1, model.layers - 1), rows) if link else 0,
            bandwidth=link * 1e6 if link else inf,
        )

    def _forward(self, kind: int, rows: float, flops_per_ms: float, bytes_per_ms: float) -> float:
        """Return the time of a layer's forward."""
        flops, weights = self._model.work(kind)
        moved = float(weights * self._model.weight_bytes)
        moved += sum(self._entering(layer, rows) for layer in (kind, kind + 1) if 0 < layer < self._model.layers)
        return max(rows * flops / flops_per_ms, moved / bytes_per_ms)

    def _entering(self, layer: int, rows: float) -> float:
        """Return the bytes of the tensor that enters a layer."""
        return rows * prod(self._model.boundary(1, layer)) * self._model.weight_bytes


class ProfilePrices(Prices):
    """The times of a profile, with the ranks' speeds; but for a forecast every rank has a core of its own.

    Args:
        device: an emulated one if every rank has a device like that of the profile; else the ranks share its cores.
    """

    is_known = True

    def __init__(self, profile: Profile, kinds: Sequence[int], device: DeviceSettings, backend: str) -> None:
        self._profile, self.kinds, self._device, self._backend = profile, kinds, device, backend
        self.source = f"profile {profile.path}" if profile.path else "a profile"

    def costs(self, workload: Workload) -> Costs:
        costs = stage_costs(self._profile, self.kinds, workload, self._backend)
        return slowed(costs, self._device, workload.schedule)

    def fastest(self, rows: float) -> float:
        """A rank that computes alone is faster than in the profile."""
        return 1.0 if self._device.is_emulated else min(1.0, self._profile.alone_at(rows))

    def forecast(self, workload: Workload, batch: tuple[float, float] = (0, 0), replicas: int = 1) -> Forecast:
        own = self._device if self._device.is_emulated else None
        return forecast(self._profile, self.kinds, workload, self._backend, batch, replicas, own)

    def loads(self, workload: Workload) -> Loads:
        rows = sum(workload.rows) / len(workload.rows)
        keeps = not workload.checkpointing.segments
        known = {kind: self._profile.layer_times(kind, rows, {}, keeps) for kind in set(self.kinds)}
        layers, fixed = [known[kind] for kind in self.kinds], self._profile.fixed_times(rows, {}, keeps)
        return LayerPrices(self.source, layers, fixed, self._device).loads(workload)


def stage_loads(workload: Workload, costs: Costs) -> list[float]:
    """Return how long each stage computes in a step."""
    schedule = workload.schedule
    units = schedule.units // schedule.copies  # of a stage
    divided = [0] * schedule.stages
    for stage, _ in schedule.input_gradients:
        divided[stage] += 1
    loads = []
    mean = float(sum(costs.shares)) / schedule.units if costs.shares else 1.0  # as if all units took as long
    for stage in range(schedule.stages):
        whole = units - divided[stage]
        weight = costs.weight[stage] if costs.weight and stage in schedule.last_gradients else 0
        again = costs.recompute[stage] if costs.recompute else 0
        spared = sum(schedule.copy_of(unit) == stage // schedule.depth for unit in costs.spared)
        loads.append(
            mean
            * float(
                units * costs.forward[stage]
                + whole * costs.full_backward(stage)
                + divided[stage] * (costs.backward[stage] + weight)
                + (units - spared) * again
            )
        )
    return loads


def rank_loads(workload: Workload, costs: Costs) -> list[float]:
    """Return how long each rank computes in a step."""
    loads = [0.0] * len(workload.schedule.ranks)
    for stage, load in enumerate(stage_loads(workload, costs)):
        loads[workload.schedule.placement[stage]] += load
    return loads
