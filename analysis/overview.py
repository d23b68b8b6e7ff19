"""What there is to report on: how many runs, from when, on what machine, and which of them have no result.

::

    outputs/ ── Store ──► "170 finished runs of 57 configurations, started from 2026-11-22 05:15 to 05:29.
                           Machine: AMD EPYC, 2 cores. Commit f3cd9ea74a63. The timing of 12 runs was
                           disturbed. Load, in 12 runs: ..."
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from analysis.exhibit import commits, counted, machines
from microp.records import DISTURBANCES, KILLED, changed_between, command, disturbances
from microp.results import Store

MINUTE = "%Y-%m-%d %H:%M"


def overview(store: Store) -> str:
    """Return what there is in a few sentences; there is at least one finished run."""
    runs = store.runs()
    starts = sorted(map(float, runs["started"]))
    first, last = (datetime.fromtimestamp(start).strftime(MINUTE) for start in (starts[0], starts[-1]))
    began = f"at {first}" if first == last else f"from {first} to {last.removeprefix(first.partition(' ')[0] + ' ')}"
    text = (
        f"{counted(len(runs), 'finished run')} of {counted(runs['question'].nunique(), 'configuration')}, "
        f"started {began}. Machine: {machines(runs)}. Commit: {commits(runs)}."
    )
    shown = set(runs["run_id"])  # with `--schedule` not all
    finished = [row for row in store.rows if row["status"] == "finished" and row["run_id"] in shown]
    return " ".join([text, _disturbed(finished), *_changed_data(finished)])


def without_result(store: Store) -> list[str]:
    """Return the runs that did not finish or cannot be read, one sentence each."""
    unfinished = [row for row in store.rows if row["status"] != "finished"]
    again = {
        point.run_id: command(point.sweep, "hydra.mode=RUN", *point.overrides)
        for plan in store.plans
        for point in plan.points
    }
    told = []
    for row in unfinished:
        message = str(row["message"] or "no message").strip().splitlines()[0]
        recorded = f" ({counted(row['steps'], 'step')} recorded)" if row["status"] == KILLED else ""
        remedy = f" (again: {again[row['run_id']]})" if row["run_id"] in again else ""
        told.append(f"{row['folder']}: {row['status']}{recorded}, {message}{remedy}")
    return [*told, *store.unreadable]


def _changed_data(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return which data were not the same in all launches of a configuration, one sentence per path."""
    launches: dict[str, list[tuple[str | None, dict[str, Any]]]] = {}
    for row in rows:
        launches.setdefault(row["question"], []).append((row["config"]["data"].get("path"), row["env"]))
    return [f"{text}." for own in launches.values() for text in changed_between(own)]


def _disturbed(rows: Sequence[dict[str, Any]]) -> str:
    """Return how many runs were disturbed, and by what."""
    found = [{each.kind for each in disturbances(row, row["env"])} for row in rows]
    number = sum(map(bool, found))
    if not number:
        return "No timing is known to have been disturbed."
    counts = {kind: sum(kind in own for own in found) for kind in DISTURBANCES}
    parts = [
        f"{kind.capitalize()}, in {counted(count, 'run')}: {DISTURBANCES[kind]}."
        for kind, count in counts.items()
        if count
    ]
    return " ".join([f"The timing of {counted(number, 'run')} was disturbed.", *parts])
