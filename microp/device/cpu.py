"""The host's CPU as a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from microp.device.base import Device, PeakMemory
from microp.device.meters import MemoryMeter


class Cpu(Device):
    """The host's CPU. A mark is a time of `perf_counter_ns`."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.mark = perf_counter_ns

    def read(self, marks: Sequence[Any]) -> list[int]:
        return list(marks)

    def peak_memory(
        self, alive: Iterable[Tensor], step: Callable[[], None], is_received: Callable[[int], bool] = lambda _: False
    ) -> PeakMemory:
        meter = MemoryMeter(alive, is_received)
        with meter:
            step()
        return PeakMemory(meter.peak_bytes, meter.peak_allocated_bytes)
