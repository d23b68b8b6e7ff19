"""One GPU as a device: the host enqueues a whole step and looks at the GPU once, at its end.

::

    compute stream   mark ─ F ─ mark ─ ... ─ optimizer ─ mark     anchor      marks and anchor are events
    host             enqueues ──────────────────────────► settle: waits ─┴─► the time on its own clock

A mark is an event on the compute stream. Once all have been reached, one more event, the anchor, is recorded on
the idle stream and its moment is read off the host's clock. A mark's time is the anchor's less the time between the
two events.
"""

from __future__ import annotations

import subprocess
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from statistics import mean
from threading import Thread
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from microp.comms import Countdown
from microp.device.base import Device, PeakMemory
from microp.settings import DeviceSettings

EVERY_MS = 200  # between two answers of nvidia-smi
_POLL_S = 100e-6  # between two looks at the GPU: a time-out ends them, which no call of CUDA's has


class Cuda(Device):
    """One GPU.

    Args:
        timeout_s: the longest time from the end of the enqueuing of a step to that of the step itself, in seconds.
        gpu: what has the GPU's events and its allocator's counts, by the names of `torch.cuda`.
        busy: what asks `nvidia-smi`; None if nothing does.
    """

    def __init__(self, index: int, timeout_s: float, gpu: Any = torch.cuda, busy: Utilisation | None = None) -> None:
        self.torch_device = torch.device("cuda", index)
        self._timeout_s, self._gpu = timeout_s, gpu
        self._busy, self._steps, self._since = busy, 0, 0
        self._anchor: tuple[Any, int] | None = None  # of this step: the event and its time
        gpu.set_device(self.torch_device)
        self.mark = self._event

    def _event(self) -> Any:
        event = self._gpu.Event(enable_timing=True)
        event.record()
        return event

    def prepare_step(self) -> None:
        self._anchor = None
        self._steps += 1
        if self._steps == 2:  # the first one loads the kernels
            self._since = perf_counter_ns()

    def settle(self) -> None:
        last, countdown = self._event(), Countdown(self._timeout_s)
        while not last.query():
            if countdown.tick() <= 0:
                raise TimeoutError(f"waited {self._timeout_s:g} s for the GPU")
            time.sleep(_POLL_S)
        anchor = self._event()
        anchor.synchronize()
        self._anchor = anchor, perf_counter_ns()

    def reached(self, marks: Sequence[Any]) -> int:
        return sum(1 for _ in takewhile(lambda mark: mark.query(), marks))

    def read(self, marks: Sequence[Any]) -> list[int]:
        """Return the times of the marks; one that is a time already stays as it is."""
        if self._anchor is None:
            self.settle()
        assert self._anchor is not None
        anchor, now = self._anchor
        return [mark if isinstance(mark, int) else now - round(mark.elapsed_time(anchor) * 1e6) for mark in marks]

    def utilisation(self) -> float | None:
        return None if self._busy is None else self._busy.end(self._since)

    def peak_memory(
        self, alive: Iterable[Tensor], step: Callable[[], None], is_received: Callable[[int], bool]
    ) -> PeakMemory:
        """Return the peaks of the allocator: live tensors, and what it has reserved, which others cannot use."""
        del alive, is_received  # received tensors are the allocator's too
        self._gpu.reset_peak_memory_stats()
        step()
        peak = self._gpu.max_memory_allocated()
        return PeakMemory(peak, peak, self._gpu.max_memory_reserved())


def gpu_of(settings: DeviceSettings, local_rank: int) -> int:
    """Return the index of a rank's GPU on its host; ranks that share GPUs are dealt out to them in turn."""
    return local_rank % torch.cuda.device_count() if settings.is_shared else local_rank


class Utilisation:
    """The answers of one `nvidia-smi`, which ends with this object or process; none if it cannot be run.

    It is the share of time in which any kernel ran. A kernel of NCCL's that waits for another rank counts, so that a
    rank of a pipeline can look busy while it waits; the time that its actions take says how busy it was.

    Args:
        uuid: the GPU's, as `nvidia-smi -L` prints it.
    """

    def __init__(self, uuid: str) -> None:
        self._answers: list[tuple[int, float]] = []  # the time in nanoseconds, and per cent
        query = (f"--id={uuid}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                ["nvidia-smi", *query, f"--loop-ms={EVERY_MS}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:  # it is not installed, as on ROCm
            return
        # A profile opens a device per case. The thread holds no reference to this object, which would keep it alive.
        weakref.finalize(self, self._process.terminate)
        self._reader = Thread(target=_read, args=(self._process, self._answers), daemon=True)
        self._reader.start()

    def end(self, since_ns: int) -> float | None:
        """End `nvidia-smi`; return the mean of its answers from `since_ns` on in per cent, None without any."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()
            self._process = None
        return mean(found) if (found := [percent for at, percent in self._answers if at >= since_ns]) else None


def _read(process: subprocess.Popen[str], answers: list[tuple[int, float]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().isdecimal():  # a GPU that does not tell prints [N/A]
            answers.append((perf_counter_ns(), float(line)))
