"""The files of runs and sweeps, read as data frames.

::

    outputs/runs/<run id>/attempt-<n>/    the newest finished attempt of each run is a row
    outputs/sweeps/*_<name>/plan.json     lists the runs of the experiment <name>

    row:  summary keys         schedule  chunks  step_ms.median  bubble.measured  ...
          configuration keys   config.device.name  config.repeat  ...
          environment keys     env.commit  env.processor  env.cores  ...
          question             the same name for all launches of one question
          folder               the folder of the attempt

If a point was planned again (the same overrides in a newer plan of the experiment), only its newer
run counts, so that rows of an older sweep are not mixed in.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from microp.records import NOT_ASKED, read_json

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast


class Point(NamedTuple):
    """One planned run of a sweep, with the name of the sweep."""

    run_id: str
    overrides: tuple[str, ...]
    sweep: str

    @property
    def question(self) -> tuple[str, ...]:
        """The overrides that define the point, without those for output and tracking."""
        return tuple(sorted(each for each in self.overrides if not each.lstrip("+").startswith(NOT_ASKED)))


class Plan(NamedTuple):
    """One `plan.json`; `experiment` is its name, or the name of the sweep that it is a part of."""

    folder: Path
    name: str
    experiment: str
    points: tuple[Point, ...]


class Store:
    """A reader of an outputs folder, which reads each file once.

    Args:
        outputs: the folder; it may be absent.
    """

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs

    @cached_property
    def plans(self) -> list[Plan]:
        """All sweeps that were started, oldest first."""
        files = sorted((self.outputs / "sweeps").glob("*/plan.json"))
        return [plan for file in files if (plan := read_plan(file)) is not None]

    @cached_property
    def _all(self) -> pd.DataFrame:
        return read_runs(self.outputs / "runs")

    def runs(self, name: str | None = None) -> pd.DataFrame:
        """Return one row per finished run of the experiment `name`, or of all experiments without a name.

        The frame has neither rows nor columns if there are no runs.
        """
        if name is None:
            return self._all.copy()
        return self.of({point.run_id for point in self.points(name)})

    def of(self, run_ids: set[str]) -> pd.DataFrame:
        """Return the rows of these runs."""
        if self._all.empty:
            return self._all.copy()
        return self._all[self._all["run_id"].isin(run_ids)].reset_index(drop=True)

    def points(self, name: str) -> list[Point]:
        """Return the points that the sweeps of the experiment `name` planned, each point once."""
        planned = [point for plan in self.plans if plan.experiment == name for point in plan.points]
        return list({point.question: point for point in planned}.values())

    def missing(self, name: str) -> list[str]:
        """Return the commands of an experiment's unfinished points, or of its whole sweep if it was never started."""
        points = self.points(name)
        if not points:
            return [command(name)]
        return self.unfinished(points)

    def unfinished(self, points: Iterable[Point]) -> list[str]:
        """Return the commands of those points that have no finished run."""
        there = set(self._all.get("run_id", ()))
        missing = (point for point in points if point.run_id not in there)
        return [command(point.sweep, "hydra.mode=RUN", *point.overrides) for point in missing]


def command(sweep: str, *overrides: str) -> str:
    """Return the shell command of a stored sweep or of a point of it; `config` is a sweep without a file."""
    stored = [] if sweep == "config" else ["-cd", "sweeps", "-cn", sweep]
    return shlex.join(["python", "-m", "microp.run", *stored, *overrides])


def read_plan(file: Path) -> Plan | None:
    """Return the plan of a sweep; None if the file is truncated or is not a plan."""
    try:
        plan = read_json(file)
        name = plan["name"]
        points = tuple(Point(point["run_id"], tuple(point["overrides"]), name) for point in plan["points"])
        return Plan(file.parent, name, plan.get("experiment", name), points)
    except (json.JSONDecodeError, KeyError, TypeError):
        return None


def read_runs(folder: Path) -> pd.DataFrame:
    """Return one row per run below `folder`, from its newest finished attempt, ordered by run."""
    newest: dict[str, tuple[float, Path]] = {}
    for file in sorted(folder.rglob("status.json")):
        status = read_json(file)
        if status["status"] == "finished" and (file.parent / "summary.json").exists():
            run = file.parent.parent.name
            newest[run] = max(newest.get(run, (0.0, file.parent)), (status["started"], file.parent))
    return pd.json_normalize([_row(attempt) for _, (_, attempt) in sorted(newest.items())])


def _row(attempt: Path) -> dict[str, Any]:
    config = yaml.load((attempt / "config.yaml").read_text(), Loader)
    return {
        **read_json(attempt / "summary.json"),
        "config": config,
        "env": read_json(attempt / "env.json"),
        "question": question(config),
        "folder": str(attempt),
    }


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dictionaries."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def worst_rank_mib(runs: pd.DataFrame) -> list[float]:
    """Return the peak activations of each run on the rank that holds most; NaN if not measured."""
    return [max(peaks) if isinstance(peaks, list) else float("nan") for peaks in runs["peak_activation_mib"]]


def question(config: dict[str, Any]) -> str:
    """Return the name that all launches of a question share, a digest of their configuration without `repeat`."""
    asked = {key: value for key, value in config.items() if key not in (*NOT_ASKED, "repeat")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
