"""Rows of a command's table: each point with the attempt that shows it; also written as table.csv.

::

    configuration, overrides  +  outputs/runs/<run>/attempt-<n>  ── read_point ──► PointRow ── write_table ──► table.csv
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from microp.records import Disturbance, disturbances, read_env, read_status, read_summary, write_text
from microp.results.swept import differing, text
from microp.system import flatten, redact_values, redact_words

_NOTHING = {**dict.fromkeys(("step_ms", "peak_memory_mib", "loss", "engines", "syncs")), "replicas": 1}


class PointRow(NamedTuple):
    """A point of a command, and the attempt that shows it."""

    config: dict[str, Any]  # the resolved configuration of the point
    overrides: list[str]  # what was typed for it
    summary: dict[str, Any]  # the numbers of the attempt
    folder: Path  # the attempt's folder
    message: str | None = None  # why it failed, if it did
    disturbed: tuple[Disturbance, ...] = ()  # why its timing was disturbed
    env: Mapping[str, Any] = {}  # the machine, the versions and the data that it ran with

    @property
    def is_crowded(self) -> bool:
        """Whether more threads than there are cores computed at once, so that its times are those of the cores."""
        ranks = self.summary["ranks"] * self.summary["replicas"]
        cores = self.env.get("cores")
        on_cores = self.summary["device"] == "cpu" and cores is not None
        return on_cores and ranks * self.config["device"]["threads"] > (cores or 0)


def read_point(config: dict[str, Any], overrides: list[str], attempt: Path) -> PointRow:
    """Return the row of a point from the files of its attempt.

    Raises:
        RecordError: a file cannot be read.
    """
    summary = read_summary(attempt)
    message, env = read_status(attempt).get("message"), read_env(attempt)
    return PointRow(config, overrides, summary, attempt, message, tuple(disturbances(summary, env)), env)


def recorded_point(row: Mapping[str, Any]) -> PointRow:
    """Return the row of a run from its nested row of `read_runs`, which may have no summary."""
    disturbed = tuple(disturbances(row, row["env"]))
    return PointRow(row["config"], [], {**_NOTHING, **row}, Path(row["folder"]), row["message"], disturbed, row["env"])


def write_table(path: Path, points: Mapping[str, tuple[dict[str, Any], list[str]]], rows: Iterable[PointRow]) -> None:
    """Write a table with one row per point of a sweep: its overrides, every key that differs, and its summary.

    `points` maps run ids to configuration and overrides. Points without one of `rows` have no summary: `planned`.

    Raises:
        WriteError: the file cannot be written.
    """
    import pandas as pd  # imported late: --help and a run's start do without it

    found = {row.summary["run_id"]: row for row in rows}
    keys = differing([config for config, _ in points.values()])
    table = []
    for run_id, (config, overrides) in points.items():
        values = redact_values(flatten(config))
        typed = shlex.join(redact_words(overrides))
        asked = {"overrides": typed, **{key: text(values[key]) for key in keys if key in values}}
        line: dict[str, Any] = {"run_id": run_id, "status": "planned", **asked}
        if row := found.get(run_id):
            reasons = "; ".join(each.text for each in row.disturbed)
            line |= {**row.summary, "folder": str(row.folder), "message": row.message, "disturbed": reasons}
        table.append(line)
    write_text(path, pd.json_normalize(table).to_csv(index=False))
