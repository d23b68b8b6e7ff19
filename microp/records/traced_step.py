"""Reads the traced step of a run: its spans and sums, measured and replayed.

::

    spans.rank<r>.jsonl ──► measured ── schedule_of, replay ──► replayed
    reductions.rank<r>.jsonl ──► sums of both
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from microp.records.records import read_reductions, read_spans
from microp.schedule import Schedule
from microp.simulator import replay, replay_reductions, schedule_of
from microp.trace import Reduction, Span


class TracedStep(NamedTuple):
    """The last measured step of a run, of its first replica."""

    schedule: Schedule  # the order that was run
    panels: dict[str, Sequence[Span]]  # `replayed`, if every rank left its trace, and `measured`: spans in nanoseconds
    sums: dict[str, Sequence[Reduction]]  # the same names -> the reductions over the replicas


def read_traced_step(attempt: Path, summary: Mapping[str, Any]) -> TracedStep | None:
    """Return the traced step of an attempt, None if it has an empty trace.

    The summary's `time_ms` is None if a rank failed before it had written its trace.

    Raises:
        RecordError: a file cannot be read.
    """
    measured, sums = read_spans(attempt), read_reductions(attempt)
    if not measured:
        return None
    schedule = schedule_of(measured, summary["schedule"])
    step = TracedStep(schedule, {"measured": measured}, {"measured": sums})
    if not summary["time_ms"]:
        return step
    replayed, replayed_sums = replay(schedule, measured), replay_reductions(schedule, measured, sums)
    return TracedStep(schedule, {"replayed": replayed, **step.panels}, {"replayed": replayed_sums, **step.sums})
