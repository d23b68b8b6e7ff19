"""GPipe's memory law beside what was measured, rank by rank.

::

    held │       ╭╮   one B: a segment is whole again       never       n a
         │   ╭───╯╰╮                                        g segments  n b + (a - b) / g
         │ ╭─╯     ╰─╮   b a microbatch in flight           always      g = 1
         └──────────────

a: activations of a microbatch, of which b are the inputs of its g segments; n: microbatches in
flight (arXiv 1811.06965, where the rebuilt segment has its own input once more). The first
stage's first input is the batch, which is counted nowhere. The law takes all segments to be
alike, but the last rank's last one has the head as well: what the largest takes is counted off
the 1F1B runs with the fewest microbatches, and then the law is asked about all the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.store import records
from analysis.timeline import schedule_of
from microp.records import read_spans
from microp.schedule import Action, Op

MIB = 2**20


def boundary_mib(row: dict[str, Any]) -> float:
    """The tensor between two layers, of one microbatch."""
    context = row.get("config.model.context")
    columns = row["config.model.dim"] * (1 if context is None or pd.isna(context) else context)
    itemsize = {"float32": 4, "float64": 8}[row["config.model.dtype"]]
    return float(row["batch_size"] / row["chunks"] * columns * itemsize / MIB)


def inputs_mib(row: dict[str, Any], rank: int) -> float:
    """The inputs of the segments that `rank` keeps of one microbatch: the first stage's first is the batch."""
    segments = min(int(row["config.checkpointing.segments"]), row["partition"][rank])
    kept: int = segments - (rank == 0)
    return kept * boundary_mib(row)


def peak_of(actions: Sequence[Action], whole: float, inputs: float, segment: float, spared: Sequence[int]) -> float:
    """The most that a rank holds over its actions: a walk along its row.

    Args:
        whole: what a microbatch holds that is not recomputed.
        inputs: what one holds that is.
        segment: what that one's B has to make again, at most.
        spared: the microbatches that are not recomputed.
    """
    held = peak = 0.0
    for op, _, microbatch in actions:
        own = whole if microbatch in spared else inputs
        if op is Op.F:
            held += own
            peak = max(peak, held)
        elif op is Op.B:
            peak = max(peak, held + (0 if microbatch in spared else segment))
            held -= own
    return peak


def laws(runs: pd.DataFrame, point: Sequence[str]) -> pd.DataFrame:
    """A line for each rank of every point.

    Args:
        runs: rows of launches, which agree in bytes, so that one of each is looked at.
        point: the columns that name a point; among them model, schedule, checkpointing and chunks.

    Returns:
        the columns `point`, `rank`, `in_flight`; in MiB `activation_mib` as measured, `law`, and
        `counted`, the law with the largest segment; and how far the measured one is off each.
        No line where there is no 1F1B run of the model that keeps everything, to count a from.
    """
    rows = records(runs.dropna(subset=["peak_activation_mib"]).drop_duplicates(point).sort_values(list(point)))
    orders = {(row["schedule"], row["chunks"]): spans for row in rows if (spans := read_spans(Path(row["folder"])))}
    single = {(row["model"], row["checkpointing"]): row for row in reversed(rows) if row["schedule"] == "1f1b"}
    lines = [
        {**{key: row[key] for key in point}, "rank": rank, **found}
        for row in rows
        if (row["schedule"], row["chunks"]) in orders and (row["model"], "never") in single
        for rank, found in enumerate(_laws(row, single, orders[row["schedule"], row["chunks"]]))
    ]
    return pd.DataFrame(lines)


def _laws(row: dict[str, Any], single: dict[Any, dict[str, Any]], spans: Any) -> Iterator[dict[str, float]]:
    """What the law says of each rank of a run."""
    schedule = schedule_of(spans, row["schedule"])
    plain = single[row["model"], "never"]
    like = single.get((row["model"], row["checkpointing"]), row)
    segments = int(row["config.checkpointing.segments"])
    everything = range(schedule.chunks)
    spared = everything if not segments else everything[-1:] if row["config.checkpointing.spare_last"] else ()
    for rank, actions in enumerate(schedule.ranks):
        whole = _of_one(plain, rank, 0.0) * plain["chunks"] / row["chunks"]
        inputs = inputs_mib(row, rank)
        mean = largest = (whole - inputs) / max(1, segments)
        if segments > 1:  # of one segment the whole is known
            largest = _of_one(like, rank, inputs_mib(like, rank)) * like["chunks"] / row["chunks"]
        measured = row["peak_activation_mib"][rank]
        law, counted = (peak_of(actions, whole, inputs, segment, spared) for segment in (mean, largest))
        yield {
            "in_flight": row["in_flight_peak"][rank],
            "activation_mib": measured,
            "law": law,
            "law error": measured / law - 1,
            "counted": counted,
            "counted error": measured / counted - 1,
        }


def _of_one(row: dict[str, Any], rank: int, inputs: float) -> float:
    """What a rank's peak leaves to one microbatch: of what it holds, or beside the `inputs` that each holds."""
    peak, number = row["peak_activation_mib"][rank], row["in_flight_peak"][rank]
    return float(peak - number * inputs if inputs else peak / number)
