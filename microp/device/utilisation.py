"""Asks `nvidia-smi` how busy a GPU is, while the rank runs its steps.

It is the share of time in which any kernel ran. A kernel of NCCL's that waits for another rank counts, so that a rank
of a pipeline can look busy while it waits; the time that its actions take says how busy it was.
"""

from __future__ import annotations

import subprocess
import weakref
from statistics import mean
from threading import Thread
from time import perf_counter_ns

EVERY_MS = 200


class Utilisation:
    """The answers of one `nvidia-smi`, which ends with this object or process; none if it cannot be run.

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
