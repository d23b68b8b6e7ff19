"""GPipe's memory law, compared with the measured peaks of each rank.

::

    held │       ╭╮   a B rebuilds one segment              never       n a
         │   ╭───╯╰╮                                        g segments  n b + (a - b) / g
         │ ╭─╯     ╰─╮   b per microbatch in flight         always      g = 1
         └──────────────

a: activations of one microbatch; b: the part of a that is the inputs of its g segments; n:
microbatches in flight (arXiv 1811.06965, which counts the input of the rebuilt segment twice).
The first input of the first stage is the batch, which is not counted. The law assumes equal
segments, but the last segment of the last rank also has the head. The size of the largest segment
is therefore taken from the 1F1B runs with the fewest microbatches, and the law is tested on all
other runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.nominal import group_of
from microp.records import read_spans
from microp.results import is_missing, records
from microp.schedule import Action, Op
from microp.settings import MODELS, Computing
from microp.simulator import schedule_of
from microp.system import MIB


def boundary_mib(row: dict[str, Any]) -> float:
    """Return the size in MiB of the tensor between two layers of a built-in model, for one microbatch."""
    settings, dtype = group_of(row, "config.model."), row.get("config.dtype")
    model = MODELS[settings["name"]](**settings)
    computing = Computing(None if is_missing(dtype) else dtype)
    return float(row["batch_size"] / row["chunks"] * model.hop_bytes(row["partition"], computing) / MIB)


def inputs_mib(row: dict[str, Any], rank: int) -> float:
    """Return the size in MiB of the segment inputs that `rank` keeps per microbatch, without the batch itself."""
    kept: int = min(int(row["config.checkpointing.segments"]), row["partition"][rank]) - (rank == 0)
    return kept * boundary_mib(row)


def peak_of(actions: Sequence[Action], whole: float, inputs: float, segment: float, spared: Sequence[int]) -> float:
    """Return the peak memory of a rank over its row of actions, found by walking along it.

    A microbatch takes `whole`, or if it is recomputed (all but those `spared`) its `inputs`, and in its backward
    the `segment` that is rebuilt.
    """
    held = peak = 0.0
    for op, _, microbatch in actions:
        own = whole if microbatch in spared else inputs
        if op is Op.F:
            held += own
            peak = max(peak, held)
        elif op is not Op.W:
            peak = max(peak, held + (0 if microbatch in spared else segment))
            held -= own
    return peak


def laws(runs: pd.DataFrame, point: Sequence[str]) -> pd.DataFrame:
    """Return a table of measured peaks and of those by the law, with one row per `point` and rank.

    Launches agree in bytes, so that one per point is used. In MiB there are `activation_mib` (measured), `law`, and
    `counted` (the law with the largest segment), with the relative errors `law error` and `counted error`. A model
    without a 1F1B run that keeps everything, which gives a, has no rows, nor has one of the user's own.
    """
    rows = records(runs.dropna(subset=["peak_activation_mib"]).drop_duplicates(point).sort_values(list(point)))
    orders = {_order_of(row): spans for row in rows if (spans := read_spans(Path(row["folder"])))}
    single = {_stages_of(row): row for row in reversed(rows) if row["schedule"] == "1f1b"}
    lines = [
        {**{key: row[key] for key in point}, "rank": rank, **found}
        for row in rows
        if row["model"] in MODELS
        if _order_of(row) in orders and _stages_of({**row, "checkpointing": "never"}) in single
        for rank, found in enumerate(_laws(row, single, orders[_order_of(row)]))
    ]
    return pd.DataFrame(lines)


_order_of = itemgetter("schedule", "ranks", "chunks")
_stages_of = itemgetter("model", "ranks", "checkpointing")


def _laws(row: dict[str, Any], single: dict[Any, dict[str, Any]], spans: Any) -> Iterator[dict[str, float]]:
    schedule = schedule_of(spans, row["schedule"])
    plain = single[_stages_of({**row, "checkpointing": "never"})]
    like = single.get(_stages_of(row), row)
    segments = int(row["config.checkpointing.segments"])
    everything = range(schedule.chunks)
    spared = everything if not segments else everything[-1:] if row["config.checkpointing.spare_last"] else ()
    for rank, actions in enumerate(schedule.ranks):
        whole = _of_one(plain, rank, 0.0) * plain["chunks"] / row["chunks"]
        inputs = inputs_mib(row, rank)
        mean = largest = (whole - inputs) / max(1, segments)
        if segments > 1:  # a single segment is the whole, which is known
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
    """Return a rank's peak per microbatch, or with `inputs` its part beyond the inputs of all microbatches."""
    peak, number = row["peak_activation_mib"][rank], row["in_flight_peak"][rank]
    return float(peak - number * inputs if inputs else peak / number)
