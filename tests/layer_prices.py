"""Made-up times of layers as prices of a plan."""

from collections.abc import Sequence

from microp.job import Workload
from microp.planner import Prices
from microp.settings import DeviceSettings
from microp.simulator import Costs, LayerTimes, costs_of, slowed


class LayerPrices(Prices):
    """Times of each layer for a microbatch, added up over a stage."""

    is_known, source = True, "made up"

    def __init__(self, layers: Sequence[LayerTimes], device: DeviceSettings | None = None, latency: float = 0) -> None:
        self._layers, self._device, self._latency = layers, device, latency
        self.kinds = [layers.index(layer) for layer in layers]

    def costs(self, workload: Workload) -> Costs:
        schedule, layers = workload.schedule, [*self._layers] * workload.schedule.copies
        costs = costs_of(layers, workload.layers, schedule, workload.checkpointing, latency=self._latency)
        return costs if self._device is None else slowed(costs, self._device, schedule)

    def weights(self, workload: Workload) -> Sequence[float]:
        return [layer.forward + layer.full for layer in self._layers]


def of_layers(times: Sequence[float], device: DeviceSettings | None = None, latency: float = 0) -> LayerPrices:
    return LayerPrices([LayerTimes(t, t, t, 2 * t, t) for t in times], device, latency)
