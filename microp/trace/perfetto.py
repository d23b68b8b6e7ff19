"""Writes spans as a trace that opens in ui.perfetto.dev.

::

    process  measured, ms
      rank 0   ▐F0▌▐F1▌         ▐B0▌▐B1▌
                   ╲             ╱               an arrow per tensor that is sent to another rank
      rank 1        ▐F0▌▐B0▌▐F1▌▐B1▌
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from microp.schedule import Schedule
from microp.trace.look import MILLISECONDS, Scale
from microp.trace.spans import Span


def perfetto(
    panels: Mapping[str, Sequence[Span]], schedules: Mapping[str, Schedule], path: Path, scale: Scale = MILLISECONDS
) -> Path:
    """Write a trace for ui.perfetto.dev, and return its path; both mappings have the panels' names.

    It has one process per panel, one thread per rank, and one arrow per tensor sent to another rank.
    The format is Chrome's trace events (JSON); one microsecond there is a thousandth of the scale's
    unit.
    """
    events: list[dict[str, Any]] = []
    for number, (name, spans) in enumerate(panels.items(), start=1):
        begin = min(span.start for span in spans)
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"{name}, {scale.unit}"}})
        events += [
            {"ph": "M", "pid": number, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}}
            for rank in sorted({span.rank for span in spans})
        ]
        events += _slices_and_arrows(spans, schedules[name], number, begin, scale.length / 1000)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def _slices_and_arrows(
    spans: Sequence[Span], schedule: Schedule, number: int, begin: Any, microsecond: float
) -> Iterator[dict[str, Any]]:
    """Yield a slice per span, and per tensor from another rank an arrow from its sender's slice to its receiver's."""
    by_action = {span.action: span for span in spans}
    for index, span in enumerate(spans):
        place = {"pid": number, "tid": span.rank}
        start, end = (float(time - begin) / microsecond for time in (span.start, span.end))
        waits = {key: float(getattr(span, key) - begin) / microsecond for key in ("wait_start", "ready")}
        details = {"stage": span.stage, "microbatch": span.microbatch, **waits}
        yield {
            **place,
            "ph": "X",
            "name": f"{span.op}{span.microbatch}",
            "cat": str(span.op),
            "ts": start,
            "dur": end - start,
            "args": details,
        }
        source = schedule.source(span.action)
        sender = by_action.get(source) if source is not None else None
        if sender is not None and sender.rank != span.rank:
            arrow = {"name": "tensor", "cat": "transfer", "id": number * 10**9 + index}
            sent = float(sender.end - begin) / microsecond
            inside = sent - float(sender.end - sender.start) / microsecond / 1000
            yield {**arrow, "ph": "s", "pid": number, "tid": sender.rank, "ts": inside}
            yield {**arrow, "ph": "f", "bp": "e", **place, "ts": start}
