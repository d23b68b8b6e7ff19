"""Where a planner's times come from: any partition of a workload is priced by them.

::

    Prices ─┬ costs(workload) ─────► Costs, for the simulator
            ├ weights(workload) ───► of each layer, where the search for a partition begins
            └ forecast(workload) ──► what a run's step takes, with everything that is known
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
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


class Prices(ABC):
    """The times of actions, for any partition of a workload."""

    source: str  # where the times come from, as a sentence's subject: `the nominal times of device=emulated`
    is_known: bool  # false if nothing is known, and every layer counts the same
    kinds: Sequence[int] = ()  # for each layer, a number that equal ones share; empty if all may differ

    @abstractmethod
    def costs(self, workload: Workload) -> Costs:
        """Return the costs of the workload's stages."""

    def weights(self, workload: Workload) -> Sequence[float]:
        """Return about how long each layer takes, in any unit; of `workload.layers` only the sum counts."""
        return [1.0] * (sum(workload.layers) // workload.schedule.copies)

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
        rows = workload.mean_rows
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
        optimizer, edges = nominal_optimizer(self._device, workload.layers, workload.schedule.copies), 0.0
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
        schedule, rows, link = workload.schedule, workload.mean_rows, getattr(self._device, "link_gb_per_s", None)
        boundary = self._entering(min(1, self._model.layers - 1), rows) if link else 0.0
        costs = costs_of(
            self._layers(rows) * schedule.copies,
            workload.layers,
            schedule,
            workload.checkpointing,
            latency=getattr(self._device, "latency_ms", 0.0),
            boundary=(0.0, *(boundary,) * (schedule.stages - 1)),
            bandwidth=link * 1e6 if link else inf,
        )
        return slowed(costs, self._device, schedule)

    def weights(self, workload: Workload) -> Sequence[float]:
        return [times.forward + times.full for times in self._layers(workload.mean_rows)]

    def _layers(self, rows: float) -> list[LayerTimes]:
        """Return the times of each layer for a microbatch."""
        model, device, speeds = self._model, self._device, (10.0, 1.0)
        if isinstance(device, EstimateSettings):
            speeds = device.tflops * 1e9, device.gb_per_s * 1e6  # per millisecond
        known = {kind: self._forward(kind, rows, *speeds) for kind in set(model.kinds)}
        unit = 1.0 if self.is_known else sum(known[kind] for kind in model.kinds) / model.layers / rows or 1.0
        shares = {kind: self._shares(kind) for kind in known}
        return [LayerTimes(*(share * known[kind] / unit for share in shares[kind])) for kind in model.kinds]

    def _shares(self, kind: int) -> tuple[float, ...]:
        """Return the times of a layer over that of its forward, in the order of `LayerTimes`.

        A backward has the share of its operations, of which those of a forward are for the gradient of the input, or,
        if that has none, for those of the weights; without operations each of the two takes as long as the forward.
        """
        model, (forward, backward, _) = self._model, self._model.work(kind)
        has_input, has_weights = kind > model.first_trained, kind not in model.frozen
        full = backward / forward if forward else has_input + has_weights
        first, rest = min(1.0, full), max(0.0, full - 1)
        return 1.0, *((first, rest) if has_input else (rest, first)), full, 1.0

    def _forward(self, kind: int, rows: float, flops_per_ms: float, bytes_per_ms: float) -> float:
        """Return the time of a layer's forward."""
        flops, _, weights = self._model.work(kind)
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

    def weights(self, workload: Workload) -> Sequence[float]:
        rows = workload.mean_rows
        known = {kind: self._profile.layer_times(kind, rows, {}) for kind in set(self.kinds)}
        return [known[kind].forward + known[kind].full for kind in self.kinds]
