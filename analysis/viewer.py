"""Data of the interactive timelines in the report, which `viewer.js` draws.

::

    {"runs": [{"name": "gpipe, M = 4, K = 2 ...", "id": ..., "ranks": 2,
               "panels": {"measured": {"makespan": ..., "bubble": ..., "spans": [...]},
                          "replayed": ...}}]}
                                        spans: seven numbers each, rank, op, stage, microbatch,
                                        start, length, wait; times in microseconds

A wait is the idle time of the rank before the action.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from microp.simulator import replay, schedule_of
from microp.store import read_spans, records
from microp.trace import Span, bubble_fraction, makespan

OPS = "FBW"
MOST_SPANS = 40_000  # over all measured timelines; about 2 MB of the page


def timelines(runs: pd.DataFrame) -> tuple[dict[str, Any], int]:
    """Return the timelines of one launch per question, preferably short ones, up to MOST_SPANS spans in all.

    Returns:
        the data of the viewer, and the number of questions that were left out.
    """
    runs = runs[runs["replicas"] == 1]  # a replayed schedule is one pipeline
    first = records(runs.sort_values(["question", "config.repeat"]).drop_duplicates("question"))
    shown: list[tuple[Any, dict[str, Any]]] = []
    room, left_out = MOST_SPANS, 0
    for row in sorted(first, key=lambda row: (row["ranks"] * row["chunks"], row["run_id"])):
        spans = read_spans(Path(row["folder"])) if room > 0 else []
        room -= len(spans)
        if not spans or room < 0:
            left_out += 1
            continue
        shown.append(
            ((row["device"], row["model"], row["ranks"], row["schedule"], row["chunks"]), _timeline(row, spans))
        )
    return {"runs": [timeline for _, timeline in sorted(shown, key=lambda each: each[0])]}, left_out


def _timeline(row: dict[str, Any], spans: Sequence[Span]) -> dict[str, Any]:
    panels = {"measured": spans, "replayed": replay(schedule_of(spans, row["schedule"]), spans)}
    name = f"{row['schedule']}, M = {row['chunks']}, K = {row['ranks']}, {row['device']} {row['model']}"
    name += f", {row['batch_size']} rows"
    if len(set(row["partition"])) > 1:
        name += f", layers {row['partition']}"
    if row["checkpointing"] != "never":
        name += f", checkpointing {row['checkpointing']}"
    return {
        "name": name,
        "id": row["run_id"],
        "ranks": row["ranks"],
        "panels": {panel: _panel(own) for panel, own in panels.items()},
    }


def _panel(spans: Sequence[Span]) -> dict[str, Any]:
    begin = min(span.start for span in spans)
    free: dict[int, Any] = {}
    numbers = []
    for span in sorted(spans, key=lambda span: (span.rank, span.start)):
        start, end = round((span.start - begin) / 1000), round((span.end - begin) / 1000)
        wait = start - free.get(span.rank, 0)
        numbers.append((span.rank, OPS.index(span.op), span.stage, span.microbatch, start, end - start, wait))
        free[span.rank] = end
    total = round(float(makespan(spans)) / 1000)
    return {"makespan": total, "bubble": round(float(bubble_fraction(spans)), 4), "spans": list(chain(*numbers))}
