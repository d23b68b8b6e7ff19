"""Replays a run: its schedule, simulated with the times that the run measured.

::

    spans.rank<r>.jsonl ──► measured ── schedule_of, replay ──► replayed         the traced step, action by action
    reductions.rank<r>.jsonl ──► sums of both

    all measured steps  ──► step_ms = head ── simulated actions ── what follows a rank's last action (sums, optimizer)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from microp.job import Job
from microp.records.records import Row, read_reductions, read_schedule, read_spans
from microp.schedule import Action, Schedule
from microp.simulator import Simulated, replay, replay_steps, schedule_of
from microp.trace import Reduction, Span, after_last_gradient, bubble_fraction, ends_at, reductions


def traced_schedule(attempt: Path, spans: Sequence[Span], name: str) -> Schedule:
    """Return the schedule of an attempt's spans, with the pairs that it ran as one action; raises as `read_json`."""
    pairs = read_schedule(attempt).pairs if (attempt / "schedule.txt").exists() else frozenset[Action]()
    return schedule_of(spans, name, pairs)


class TracedStep(NamedTuple):
    """The last measured step of a run, of its first replica."""

    schedule: Schedule  # the order that was run
    panels: dict[str, Sequence[Span]]  # `replayed`, if every rank left its trace, and `measured`: spans in nanoseconds
    sums: dict[str, Sequence[Reduction]]  # the same names -> the reductions over the replicas

    def marked(self, disturbed: bool) -> TracedStep:
        """Return it with names as figures have them: they tell whether the run was disturbed."""
        names = {name: f"{name} (disturbed)" if disturbed and name == "measured" else name for name in self.panels}
        panels = {names[name]: spans for name, spans in self.panels.items()}
        return self._replace(panels=panels, sums={names[name]: sums for name, sums in self.sums.items()})


def read_traced_step(attempt: Path, summary: Mapping[str, Any]) -> TracedStep | None:
    """Return the traced step of an attempt, None if it has an empty trace.

    The summary's `time_ms` is None if a rank failed before it had written its trace.

    Raises:
        RecordError: a file cannot be read.
    """
    measured, sums = read_spans(attempt), read_reductions(attempt)
    if not measured:
        return None
    schedule = traced_schedule(attempt, measured, summary["schedule"])
    step = TracedStep(schedule, {"measured": measured}, {"measured": sums})
    if not summary["time_ms"]:
        return step
    replayed, times = replay(schedule, measured), after_last_gradient(schedule, measured, sums)
    replayed_sums = reductions(schedule, replayed, times) if times else []
    return TracedStep(schedule, {"replayed": replayed, **step.panels}, {"replayed": replayed_sums, **step.sums})


class Replay(NamedTuple):
    """The run's schedule, simulated with the times of its measured steps and of the attempt's spans."""

    spans: Simulated | None  # the step of the first replica, in milliseconds; None if no step was traced
    sum_ms: Sequence[float]  # of each stage's sum over the replicas; empty if there is one replica
    numbers: dict[str, float | None]  # `step_ms` and `bubble`, None without a traced step


def replay_run(job: Job, steps: list[list[Row]], attempt: Path) -> Replay:
    """Return the replay of an attempt with these measured steps."""
    traced = read_spans(attempt)
    if not steps or not traced:
        return Replay(None, (), {"step_ms": None, "bubble": None})
    pipelines = [pipeline for step in steps for pipeline in by_replica(job, step)]
    spans = replay_steps(job.schedule, pipelines, traced)
    sum_ms = [ns / 1e6 for ns in after_last_gradient(job.schedule, traced, read_reductions(attempt))]
    if sum_ms:
        optimizer_ms = median(max(row["optimizer_ms"] for row in step) for step in steps)
        step_ms = float(ends_at(spans, reductions(job.schedule, spans, sum_ms))) + float(optimizer_ms)
    else:
        ends: dict[int, float] = spans.per_rank(spans.end, np.maximum)
        step_ms = max(ends[rank] + _outside_ms(rank, steps) for rank in range(job.ranks))
    return Replay(spans, sum_ms, {"step_ms": step_ms, "bubble": float(bubble_fraction(spans))})


def _outside_ms(rank: int, steps: list[list[Row]]) -> float:
    """Return a rank's median time before the first action of a step and after its own last one."""
    before = median(min(row["first_start_ns"] for row in step) - step[rank]["began_ns"] for step in steps)
    after = median(step[rank]["ended_ns"] - step[rank]["last_end_ns"] for step in steps)
    return float(before + after) / 1e6


def by_replica(job: Job, step: list[Row]) -> list[list[Row]]:
    """Return a step's rows, one list per pipeline."""
    return [step[first : first + job.ranks] for first in range(0, len(step), job.ranks)]
