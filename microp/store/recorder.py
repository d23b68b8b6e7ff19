"""Writes the files of an attempt; `records` reads them back, and describes them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from microp.schedule import Schedule, to_text
from microp.store.records import SCHEMA_VERSION, Row
from microp.trace import MOMENTS, Reduction, Span


class RankRecorder:
    """Writes one rank's files of one attempt.

    Args:
        attempt: the attempt's folder.
        rank: the number of the rank among the ranks of all replicas.
        replica: the replica it belongs to.
    """

    def __init__(self, attempt: Path, rank: int, replica: int = 0) -> None:
        self._attempt, self._rank, self._replica = attempt, rank, replica
        self._steps = (attempt / f"steps.rank{rank}.jsonl").open("w")

    def step(self, row: Row) -> None:
        """Append one row and pass it to the operating system, so that it survives a kill."""
        self._steps.write(_line(row))
        self._steps.flush()

    def spans(self, step: int, spans: Iterable[Span]) -> None:
        """Write the trace of one step."""
        own = {"step": step, "replica": self._replica}
        names = {moment: f"{moment}_ns" for moment in MOMENTS}
        rows = ({**own, **{names.get(key, key): value for key, value in span._asdict().items()}} for span in spans)
        _write_lines(self._attempt / f"spans.rank{self._rank}.jsonl", rows)

    def reductions(self, step: int, found: Iterable[Reduction]) -> None:
        """Write one step's sums over the replicas; write no file if there are none."""
        own = {"step": step, "replica": self._replica}
        rows = [{**own, "rank": r.rank, "stage": r.stage, "start_ns": r.start, "end_ns": r.end} for r in found]
        if rows:
            _write_lines(self._attempt / f"reductions.rank{self._rank}.jsonl", rows)

    def error(self, row: Row) -> None:
        """Write the error of this rank."""
        write_json(self._attempt / f"error.rank{self._rank}.json", row)

    def close(self) -> None:
        self._steps.close()


def _write_lines(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(map(_line, rows)))


def _line(row: Row) -> str:
    return to_json({"schema_version": SCHEMA_VERSION, **row}) + "\n"


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, which knows no NaN and no infinity: such a number becomes null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_with_nulls(value), indent=indent, allow_nan=False)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_nulls(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, so that a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(to_json(value, 2) + "\n")
    draft.replace(path)


def write_schedule(attempt: Path, schedule: Schedule) -> None:
    """Write the schedule that the attempt runs to `schedule.txt`."""
    (attempt / "schedule.txt").write_text(to_text(schedule))


def new_attempt(runs: Path, run_id: str) -> Path:
    """Make and return the next `attempt-<n>` folder of a run; no attempt is overwritten.

    Raises:
        OSError: the folder cannot be made, for example because a part of its path is a file or a broken link.
    """
    run = runs / run_id
    run.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        attempt = run / f"attempt-{number}"
        try:
            attempt.mkdir()
        except FileExistsError:
            number += 1
        else:
            return attempt
