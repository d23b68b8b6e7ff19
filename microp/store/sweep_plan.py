"""Writes and reads what a sweep has planned, so that each point runs as it was checked, in whatever process.

::

    outputs/sweeps/<time>_<name>/
        plan.json      the sweep: name, command, and each run with its overrides
        points.jsonl   a line per point: overrides, resolved configuration, order and partition, or why it is left out
        stopped.json   why the other points are not run, if the sweep stops before its end

`points.jsonl` only grows: a sweeper that chooses points as it goes adds each of them when it has chosen it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from typing import Any

from microp.settings import redact_values, redact_words
from microp.store.files import parse_problem, write_text
from microp.store.lock import hold
from microp.store.recorder import write_json
from microp.store.records import RecordError, Row, read_json


class SweepPlan:
    """The plan of one sweep.

    Args:
        folder: the sweep's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._points = folder / "points.jsonl"
        self._starts: dict[tuple[str, ...], int] = {}  # overrides -> where its line starts
        self._secret: dict[tuple[str, ...], Row] = {}  # points that are not whole on disk
        self._read_to = 0

    @property
    def head(self) -> dict[str, Any]:
        """The content of `plan.json`; reading it raises RecordError if that cannot be read."""
        path = self.folder / "plan.json"
        try:
            found: dict[str, Any] = read_json(path)
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(path, parse_problem(error)) from error
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            raise _unreadable(path, "it is not a plan")
        return found

    @cached_property
    def again(self) -> bool:
        """Whether attempts do not count that were finished before the sweep was planned."""
        return bool(self.head.get("again"))

    @property
    def stopped(self) -> str | None:
        """Why no other point is run; None: the sweep goes on."""
        path = self.folder / "stopped.json"
        return str(read_json(path)["reason"]) if path.exists() else None

    def stop(self, reason: str) -> None:
        """Let no other point start, in any process."""
        write_json(self.folder / "stopped.json", {"reason": reason})

    def write(self, head: dict[str, Any], points: Iterable[Row]) -> None:
        """Write the plan of a sweep that starts; `points` have at least `overrides`, and a `run_id` unless left out."""
        lines = [self._line(point) for point in points]
        write_text(self._points, "".join(lines))
        write_json(self.folder / "plan.json", {**head, "points": _listed(map(json.loads, lines))})

    def add(self, point: Row) -> None:
        """Add a point that a sweeper has only just chosen; several processes may do so at once."""
        with hold(self.folder, waiting=lambda _: None):
            with self._points.open("a+b") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                end = b"" if file.read() in (b"\n", b"") else b"\n"  # a process was killed while it wrote a line
                file.write(end + self._line(point).encode())
            write_json(self.folder / "plan.json", {**self.head, "points": _listed(self.points())})

    def find(self, overrides: Sequence[str]) -> Row | None:
        """Return the point with these overrides; None if the plan has none."""
        asked = tuple(overrides)
        if asked in self._secret:
            return self._secret[asked]
        if asked not in self._starts and self._points.exists():
            for start, end, point in self._lines(self._read_to):
                self._starts.setdefault(tuple(point["overrides"]), start)
                self._read_to = end
        if asked not in self._starts:
            return None
        return next(point for _, _, point in self._lines(self._starts[asked]))

    def points(self) -> list[Row]:
        """Return all points, in their order."""
        return [point for _, _, point in self._lines(0)]

    def _line(self, point: Row) -> str:
        """Return the line of a point; a point with secrets is written without them, and kept whole in this process."""
        written = {**point, "overrides": redact_words(point["overrides"])}
        if "config" in point:
            written["config"] = redact_values(point["config"])
        if written != point:
            self._secret[tuple(point["overrides"])] = point
        return json.dumps(written) + "\n"

    def _lines(self, start: int) -> Iterator[tuple[int, int, Row]]:
        """Yield where each line starts and ends and what it holds; a line that holds no point is left out."""
        with self._points.open("rb") as file:
            file.seek(start)
            for line in file:
                end = start + len(line)
                if line.endswith(b"\n"):
                    with suppress(ValueError, RecursionError):
                        point = json.loads(line)
                        if isinstance(point, dict) and isinstance(point.get("overrides"), list):
                            yield start, end, point
                start = end


def plan_in(folder: Path) -> SweepPlan:
    """Return the plan of the sweep in a folder; it reads each line of it once."""
    return _plan_in(folder, Path.cwd())


@cache
def _plan_in(folder: Path, _current: Path) -> SweepPlan:
    return SweepPlan(folder)


def claim_folder(wanted: Path) -> Path:
    """Make and return a sweep's folder: `wanted`, or if another sweep has it `wanted` with `_2`, `_3`, ..."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError


def _unreadable(path: Path, reason: str) -> RecordError:
    return RecordError(f"{path} cannot be read ({reason}): run its sweep again")


def _listed(points: Iterable[Row]) -> list[Row]:
    """Return what `plan.json` tells of the points that are run."""
    return [{key: point[key] for key in ("run_id", "overrides")} for point in points if "run_id" in point]
