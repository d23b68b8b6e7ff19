"""The interface of a device, one rank's clock and peak memory, and the plain CPU.

::

    mark() ─ F ─ mark() ─ B ─ mark()      cheap, called during the step
    read(marks) -> nanoseconds            called after the step

On a CPU a mark is a time. On CUDA and ROCm it is an event in the stream, because the host
runs ahead of the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor

from microp.comms import Comms
from microp.device.meters import MemoryMeter
from microp.schedule import Action

Run = Callable[[int, Tensor | None], Tensor | None]
"""Runs an action: (microbatch, the input tensor) -> the output tensor."""

Give = Callable[..., Any]
"""Passes on an action's output: (tensor, `leaves_ns` of `Outbox.send`)."""


class PeakMemory(NamedTuple):
    """The peaks of a step, in bytes."""

    all_bytes: int  # of all live tensors
    allocated_bytes: int  # of those that torch's allocator holds
    reserved_bytes: int | None = None  # of what the allocator has taken from a GPU; None on CPUs


class Device(ABC):
    """The clock and the memory meter of one rank.

    Attributes:
        torch_device: the device of the rank's tensors.
        mark: takes the time, in a form that `read` converts into nanoseconds.
        overruns: the number of actions, and of sums of gradients, that took longer than their nominal time.
        work_ns: the time of the real work in actions that have a nominal time, in nanoseconds.
    """

    torch_device: torch.device
    mark: Callable[[], Any]
    overruns = 0
    work_ns = 0

    def bind(self, action: Action, run: Run, give: Give | None = None) -> tuple[Run, Give | None]:
        """Return the two functions that the engine calls for `action` on this device, one after the other.

        Args:
            give: passes on its output; None if no action uses the output.
        """
        return run, give

    def prepare_step(self) -> None:  # noqa: B027  (most devices keep no state)
        """Discard the state of the last step; called before each step."""

    def settle(self) -> None:  # noqa: B027  (most do the work when they are told to)
        """Wait until the device has done all that it was given in this step.

        Raises:
            TimeoutError: it waits for too long for something, such as a tensor of another rank.
        """

    def reached(self, marks: Sequence[Any]) -> int:
        """Return how many of the marks of a step the device has reached."""
        return len(marks)

    def utilisation(self) -> float | None:
        """Return how busy the device was by its driver's own count, in per cent; None without one. Ends the count."""
        return None

    def recompute_ns(self, row: Sequence[Action], measured: int) -> int:
        """Return the time that a rank's actions spend on recomputation, in nanoseconds.

        Args:
            measured: the measured time of recomputation, in nanoseconds.
        """
        return measured

    def reduction_end(self, stage: int, start_ns: int) -> int | None:
        """Wait for the nominal end of the sum of a stage's gradients over the replicas, and return that time.

        Args:
            stage: the stage whose real sum has ended.
            start_ns: the earliest start of the sum, in nanoseconds of `perf_counter_ns`.

        Returns:
            The nominal end in nanoseconds of `perf_counter_ns`; None, without a wait, if the real end counts.
        """
        return None

    def finish_sums(self, began: Any, stages: Iterable[int]) -> None:  # noqa: B027  (most take the real time)
        """Wait for the nominal end of the sums of these stages' gradients over copies, which began at this mark."""

    def finish_optimizer(self, began: Any, stages: Iterable[int]) -> None:  # noqa: B027  (most take the real time)
        """Wait for the nominal end of the optimizer's step on the weights of these stages, which began at this mark."""

    def wrap_comms(self, comms: Comms) -> Comms:
        """Return `comms` with the latency that it has between devices of this kind."""
        return comms

    @abstractmethod
    def read(self, marks: Sequence[Any]) -> list[int]:
        """Return the times of the marks in nanoseconds of the host's `perf_counter_ns`."""

    @abstractmethod
    def peak_memory(
        self, alive: Iterable[Tensor], step: Callable[[], None], is_received: Callable[[int], bool]
    ) -> PeakMemory:
        """Run `step` and return its peaks of live tensor memory.

        Args:
            alive: the tensors that exist before the step.
            is_received: see `MemoryMeter`.
        """


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
