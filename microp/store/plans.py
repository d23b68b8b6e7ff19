"""Reads the plans of sweeps.

::

    outputs/sweeps/<time>_<name>/plan.json ── read_plan ──► Plan ── points ──► run id, overrides ── command ──► shell
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from microp.job import NOT_ASKED
from microp.store.records import RecordError, check_version, read_json


class Point(NamedTuple):
    """One run that a sweep planned, and the sweep's name."""

    run_id: str
    overrides: tuple[str, ...]
    sweep: str

    @property
    def asked(self) -> tuple[str, ...]:
        """The overrides that are part of the question."""
        return tuple(sorted(each for each in self.overrides if not each.lstrip("+").startswith(NOT_ASKED)))


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
    try:
        plan = read_json(file)
        check_version(plan, file)
        name = plan["name"]
        experiment = plan.get("experiment", name)
        points = tuple(Point(point["run_id"], tuple(point["overrides"]), name) for point in plan["points"])
        if not all(isinstance(each, str) for point in points for each in (name, experiment, point.run_id, *point[1])):
            raise TypeError("a name, a run or an override is no text")
        return Plan(file.parent, name, experiment, points)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{file} cannot be read ({error!r}): run its sweep again") from error
