"""One GPU as a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from microp.device.base import Device, PeakMemory


class Cuda(Device):
    """One GPU. A mark is an event on the current stream."""

    def __init__(self, local_rank: int) -> None:
        self.torch_device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.torch_device)
        self.mark = self._event

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, marks: Sequence[Any]) -> list[int]:
        anchor = self._event()
        torch.cuda.synchronize()
        now = perf_counter_ns()
        return [now - round(mark.elapsed_time(anchor) * 1e6) for mark in marks]

    def peak_memory(
        self, alive: Iterable[Tensor], step: Callable[[], None], is_received: Callable[[int], bool]
    ) -> PeakMemory:
        del alive, is_received  # received tensors are the allocator's too
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        return PeakMemory(peak, peak)
