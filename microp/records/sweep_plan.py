"""Writes and reads what a sweep has planned, so that each point runs as it was checked, in whatever process.

::

    outputs/sweeps/<time>_<name>/
        plan.json      the sweep: name, command, and each run with its overrides
        points.jsonl   a line per point: overrides, resolved configuration, order and partition, or why it is left out

`points.jsonl` only grows: a sweeper that chooses points as it goes adds each of them when it has chosen it.

A sweep's process has a `SweepPlan`; reports read a `Plan`, whose points are run ids and overrides.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from microp.job import NOT_ASKED
from microp.records.files import write_text
from microp.records.lock import hold
from microp.records.recorder import write_json
from microp.records.records import RecordError, Row, read_record, unreadable
from microp.system import redact_values, redact_words

REMEDY = "run its sweep again"


class SweepPlan:
    """The plan of one sweep, by its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._points = folder / "points.jsonl"
        self._secret: dict[tuple[str, ...], Row] = {}  # points that are not whole on disk

    @property
    def head(self) -> dict[str, Any]:
        """The content of `plan.json`; reading it raises RecordError if that cannot be read."""
        return _read_head(self.folder)

    @cached_property
    def again(self) -> bool:
        """Whether attempts do not count that were finished before the sweep was planned."""
        return bool(self.head.get("again"))

    def write(self, head: dict[str, Any], points: Iterable[Row]) -> None:
        """Write the plan of a sweep that starts; `points` have at least `overrides`, and a `run_id` unless left out."""
        lines = [self._line(point) for point in points]
        write_text(self._points, "".join(lines))
        write_json(self.folder / "plan.json", {**head, "points": _listed(map(json.loads, lines))})

    def add(self, point: Row) -> None:
        """Add a point that a sweeper has only just chosen; several processes may do so at once."""
        with hold(self.folder, waiting=lambda _: None):
            write_text(self._points, self._points.read_text() + self._line(point))
            write_json(self.folder / "plan.json", {**self.head, "points": _listed(self.points())})

    def find(self, overrides: Sequence[str]) -> Row | None:
        """Return the point with these overrides; None if the plan has none."""
        if whole := self._secret.get(tuple(overrides)):
            return whole
        return next((point for point in self.points() if point["overrides"] == list(overrides)), None)

    def points(self) -> list[Row]:
        """Return all points, in their order."""
        return list(map(json.loads, self._points.read_text().splitlines())) if self._points.exists() else []

    def _line(self, point: Row) -> str:
        """Return the line of a point; a point with secrets is written without them, and kept whole in this process."""
        written = {**point, "overrides": redact_words(point["overrides"])}
        if "config" in point:
            written["config"] = redact_values(point["config"])
        if written != point:
            self._secret[tuple(point["overrides"])] = point
        return json.dumps(written) + "\n"


def plan_in(folder: Path) -> SweepPlan:
    """Return the plan of the sweep in a folder, the same one in the whole process: it keeps the secrets of points."""
    return _plan_in(folder, Path.cwd())


@cache
def _plan_in(folder: Path, _current: Path) -> SweepPlan:
    return SweepPlan(folder)


def claim_folder(wanted: Path) -> Path:
    """Make and return a sweep's folder: `wanted`, or if another sweep has it `wanted` with `_2`, `_3`, ..."""
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")
        else:
            return folder


def _listed(points: Iterable[Row]) -> list[Row]:
    """Return what `plan.json` tells of the points that are run."""
    return [{key: point[key] for key in ("run_id", "overrides")} for point in points if "run_id" in point]


# --- what reports read ----------------------------------------------------------------------------


class Point(NamedTuple):
    """One run that a sweep planned, and the sweep's name."""

    run_id: str
    overrides: tuple[str, ...]
    sweep: str

    @property
    def asked(self) -> tuple[str, ...]:
        """The overrides that are part of the question."""
        return tuple(sorted(word for word in self.overrides if not word.lstrip("+").startswith(NOT_ASKED)))


class Plan(NamedTuple):
    """One `plan.json`; `experiment` is its name, or that of the sweep of which it is a part."""

    folder: Path
    name: str
    experiment: str
    points: tuple[Point, ...]


def command(sweep: str, *overrides: str) -> str:
    """Return the shell command of a stored sweep or of one of its points; `config` means a sweep without a file."""
    stored = [] if sweep == "config" else ["-cn", sweep]
    return shlex.join(["python", "-m", "microp.run", *stored, *overrides])


def read_plans(folder: Path) -> tuple[list[Plan], list[str]]:
    """Return the plans of the sweeps below `folder`, oldest first, and why others are left out, one sentence each."""
    plans, unreadable = [], []
    for file in sorted(folder.rglob("plan.json")):
        try:
            plans.append(read_plan(file))
        except RecordError as error:
            unreadable.append(str(error))
    return plans, unreadable


def read_plan(file: Path) -> Plan:
    """Return the plan of a sweep.

    Raises:
        RecordError: the file is truncated or not a plan, or a newer microp wrote it.
    """
    plan = _read_head(file.parent)
    name = plan["name"]
    try:
        points = tuple(Point(point["run_id"], tuple(point["overrides"]), name) for point in plan["points"])
    except (KeyError, TypeError) as error:
        raise unreadable(file, repr(error), REMEDY) from error
    return Plan(file.parent, name, plan.get("experiment", name), points)


def _read_head(folder: Path) -> dict[str, Any]:
    return read_record(folder / "plan.json", ("name", "points"), REMEDY)
