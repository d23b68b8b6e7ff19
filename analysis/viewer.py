"""The interactive timelines in the report: their data, and what `viewer.html.j2` is filled with.

::

    {"palette": [{"letter": "F", "name": "forward", "fill": [first stage, second stage], "ink": ...}, ...],
     "reduction": the colour of a sum over the replicas,
     "first": the run that is shown first: the newest one, of several ranks if there is one
     "runs": [{"name": "gpipe, M=4, K=2 ...", "id": ..., "sweep": ..., "ranks": 2,
               "shades": [0, 0],                         of each stage: which of the two fills it has
               "actions": [0, 0, 0, 0, ...],             four numbers each: rank, op, stage, microbatch
               "parents": [[], [0], ...],                for each action, the actions that it waits for
               "facts": ["replayed 62.1 ms, bubble 0.205", ...],    the line above the timelines
               "panels": [{"name": "replayed", "length": ...,       of the step, with its sums
                           "times": [0, 5000, 0, ...],   three numbers for each action: start, length, wait
                           "sums": [0, 0, 9000, 500]},   four numbers each: rank, stage, start, length
                          {"name": "measured", ...}]}]}

Panels are shown in this order, from top to bottom; any number of them may share the actions.
Times are in microseconds from the panel's first start. A wait is the idle time of the rank before
the action. Of several replicas the first is shown, with the sums over all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.exhibit import counted
from analysis.varied import say, varying
from microp.records import TracedStep, read_traced_step
from microp.results import is_missing, records
from microp.schedule import Schedule
from microp.trace import COLOURS, INK, NAMES, REDUCTION, Reduction, Span, ends_at, header, shade

HERE = Path(__file__).parent
OPS = tuple(NAMES)
PALETTE = [{"letter": op, "name": name, "fill": COLOURS[op], "ink": INK[op]} for op, name in NAMES.items()]
SCRIPTS = ("run_finder.js", "viewer_step.js", "viewer_canvas.js", "viewer.js")  # one script, in this order
MOST_SPANS = 40_000  # over all measured timelines; about 2 MB of the page


def parts(runs: pd.DataFrame) -> dict[str, Any]:
    """Return the values that `viewer.html.j2` and its style need of the page."""
    data, left_out = timelines(runs)
    return {
        "timelines": data,
        "left_out": left_out,
        "viewer_style": (HERE / "viewer.css").read_text(),
        "viewer_script": "".join((HERE / name).read_text() for name in SCRIPTS),
    }


def timelines(runs: pd.DataFrame) -> tuple[dict[str, Any], int]:
    """Return the timelines of one launch per question, preferably short ones, and how many questions were left out.

    They have up to MOST_SPANS spans in all.
    """
    first = runs.sort_values(["question", "config.repeat"]).drop_duplicates("question").reset_index(drop=True)
    names = _names(first)
    shown: list[tuple[Any, Any, dict[str, Any]]] = []
    room, left_out = MOST_SPANS, 0
    named = zip(names, records(first), strict=True)
    for name, row in sorted(named, key=lambda each: (each[1]["ranks"] * each[1]["chunks"], each[1]["run_id"])):
        read = {**row, "time_ms": True}  # a finished run has all ranks' traces
        step = read_traced_step(Path(row["folder"]), read) if room >= 0 else None
        room -= len(step.panels["measured"]) if step else 0
        if room < 0:
            left_out += 1
        elif step is not None:
            place = (row["device"], row["model"], row["ranks"], row["schedule"], row["chunks"], name)
            shown.append((place, (row["ranks"] > 1, row.get("started", 0)), _timeline(row, name, step)))
    shown.sort(key=lambda each: each[0])
    ordered = [timeline for *_, timeline in shown]
    newest = max(range(len(shown)), key=lambda place: shown[place][1], default=0)
    return {"palette": PALETTE, "reduction": REDUCTION, "first": newest, "runs": ordered}, left_out


def _names(runs: pd.DataFrame) -> list[str]:
    """Return a name for each run; names that would be equal get the configuration keys in which the runs differ."""
    names = [_name(row) for row in records(runs)]
    same: dict[str, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        same[name].append(number)
    for group in same.values():
        keys = varying(runs.iloc[group]) if len(group) > 1 else []
        for number in group:
            values = {key: runs[f"config.{key}"].iloc[number] for key in keys}
            names[number] += "".join(f", {say(key, value)}" for key, value in values.items() if not is_missing(value))
    return names


def _name(row: dict[str, Any]) -> str:
    name = f"{row['schedule']}, M={row['chunks']}, K={row['ranks']}, {row['device']} {row['model']}"
    name += f", {counted(row['batch_size'], 'row')}" + f", {row['replicas']} replicas" * (row["replicas"] > 1)
    name += f", layers {row['partition']}" * (len(set(row["partition"])) > 1)
    return str(name + f", checkpointing {row['checkpointing']}" * (row["checkpointing"] != "never"))


def _timeline(row: dict[str, Any], name: str, step: TracedStep) -> dict[str, Any]:
    schedule = step.schedule
    places = {action: number for number, (_, action) in enumerate(schedule)}
    actions = ((rank, OPS.index(action.op), action.stage, action.microbatch) for rank, action in schedule)
    holds = [schedule.stages_of(rank) for rank in range(len(schedule.ranks))]
    experiment, median = row.get("env.experiment"), f"median step {row['step_ms.median']:.4g} ms"
    return {
        "name": name,
        "id": row["run_id"],
        "sweep": experiment if isinstance(experiment, str) else "",
        "ranks": row["ranks"],
        "shades": [shade(stage, holds[rank]) for stage, rank in schedule.placement.items()],
        "actions": list(chain(*actions)),
        "parents": [[places[parent] for parent in schedule.parents(action)] for _, action in schedule],
        "facts": [*header(step.panels, step.sums, _predicted(row)), *[f"disturbed: {median}"] * bool(row["disturbed"])],
        "panels": [_panel(schedule, kind, spans, step.sums[kind]) for kind, spans in step.panels.items()],
    }


def _predicted(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the step time and the bubble that were predicted of a run; None if they were not."""
    known = {key: row.get(f"predicted.{key}") for key in ("step_ms", "bubble")}
    return None if pd.isna(list(known.values())).any() else known


def _panel(schedule: Schedule, kind: str, spans: Sequence[Span], found: Sequence[Reduction]) -> dict[str, Any]:
    begin = min(span.start for span in spans)

    def micros(time: Any) -> int:
        return round(float(time - begin) / 1000)

    by_action = {span.action: span for span in spans}
    free = [0] * len(schedule.ranks)
    times: list[int] = []
    for rank, action in schedule:
        start, end = micros(by_action[action].start), micros(by_action[action].end)
        times += (start, end - start, start - free[rank])
        free[rank] = end
    sums = ((s.rank, s.stage, micros(s.start), micros(s.end) - micros(s.start)) for s in found)
    return {"name": kind, "length": micros(ends_at(spans, found)), "times": times, "sums": list(chain(*sums))}
