"""Replays a run: its schedule, simulated with the run's own times.

::

    step_ms = head ── simulated actions ── what follows a rank's last action (its sums, the optimizer)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from microp.job import Job
from microp.simulator import Simulated, replay_steps
from microp.store.records import Row, read_reductions, read_spans
from microp.trace import after_last_gradient, bubble_fraction, ends_at, reductions


class Replay:
    """The run's schedule, simulated with its own times.

    Args:
        job: the job that was run.
        steps: the rows of each measured step.
        pairs: the same, one list of rows per step and pipeline.
        attempt: the folder with the spans.

    Attributes:
        spans: of the first replica, in milliseconds; None if no step was traced.
        sum_ms: the time of each stage's sum over the replicas; empty if there is one replica.
    """

    def __init__(self, job: Job, steps: list[list[Row]], pairs: list[list[Row]], attempt: Path) -> None:
        self._job, self._steps = job, steps
        self.spans: Simulated | None = None
        self.sum_ms: Sequence[float] = ()
        traced = read_spans(attempt)
        if not steps or not len(traced):
            return
        self.spans = replay_steps(job.schedule, pairs, traced)
        self.sum_ms = [ns / 1e6 for ns in after_last_gradient(job.schedule, traced, read_reductions(attempt))]

    def numbers(self) -> dict[str, float | None]:
        """Return the time of a step, and its bubble; None without a traced step."""
        if self.spans is None:
            return {"step_ms": None, "bubble": None}
        return {"step_ms": self._step_ms(self.spans), "bubble": float(bubble_fraction(self.spans))}

    def _step_ms(self, spans: Simulated) -> float:
        if self.sum_ms:
            optimizer_ms = float(median(max(row["optimizer_ms"] for row in step) for step in self._steps))
            return float(ends_at(spans, reductions(self._job.schedule, spans, self.sum_ms))) + optimizer_ms
        ends: dict[int, float] = spans.per_rank(spans.end, np.maximum)
        found = [
            float(ends[rank]) + self._before(rank) + float(median(_after(step[rank]) for step in self._steps))
            for rank in range(self._job.ranks)
        ]
        return max(map(float, found))

    def _before(self, rank: int) -> float:
        """Return the median time from a rank's begin of a step to the step's first action."""
        starts = (min(row["first_start_ns"] for row in step) - step[rank]["began_ns"] for step in self._steps)
        first: float = median(starts)
        return first / 1e6


def _after(row: Row) -> float:
    """Return the time from a rank's last action to the end of its step."""
    return float(row["ended_ns"] - row["last_end_ns"]) / 1e6
