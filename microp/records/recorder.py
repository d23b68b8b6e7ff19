"""Writes the files of an attempt; `records` reads them back, and describes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from microp.records.files import unwritable, write_text
from microp.records.records import ROWS, SCHEMA_VERSION, Row, StepRow, attempts, json_lines, number_of
from microp.schedule import Schedule, to_text
from microp.trace import MOMENTS, Reduction, Span


class RankRecorder:
    """Writes the files of one rank, counted over all replicas, of one attempt.

    `clock_offset_ns` is added to every moment that is written (a key that ends in `_ns`). All methods raise WriteError
    if a file cannot be written.
    """

    def __init__(self, attempt: Path, rank: int, replica: int = 0, clock_offset_ns: int = 0) -> None:
        self._attempt, self._rank, self._replica = attempt, rank, replica
        self._offset_ns = clock_offset_ns
        self._path = attempt / f"steps.rank{rank}.jsonl"
        try:
            self._steps = self._path.open("wb", buffering=0)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def step(self, row: StepRow) -> None:
        """Append one row and pass it to the operating system, so that it survives a kill."""
        rest = self._line({**row}).encode()
        try:
            while rest:  # a disk that becomes full takes a part, and then nothing
                rest = rest[self._steps.write(rest) :]
        except OSError as error:
            raise unwritable(self._path, error) from error

    def spans(self, step: int, spans: Iterable[Span]) -> None:
        """Write the trace of one step."""
        names = {moment: f"{moment}_ns" for moment in MOMENTS}
        rows = [{names.get(key, key): value for key, value in span._asdict().items()} for span in spans]
        self._write("spans", step, rows)

    def reductions(self, step: int, reductions: Iterable[Reduction]) -> None:
        """Write one step's sums over the replicas; write no file if there are none."""
        rows = [{"rank": r.rank, "stage": r.stage, "start_ns": r.start, "end_ns": r.end} for r in reductions]
        if rows:
            self._write("reductions", step, rows)

    def error(self, row: Row) -> None:
        """Write the error of this rank."""
        write_json(self._attempt / f"error.rank{self._rank}.json", row)

    def close(self) -> None:
        self._steps.close()

    def _write(self, kind: str, step: int, rows: Iterable[Row]) -> None:
        lines = [self._line({"step": step, "replica": self._replica, **row}) for row in rows]
        write_text(self._attempt / f"{kind}.rank{self._rank}.jsonl", "".join(lines))

    def _line(self, row: Row) -> str:
        shifted = with_moments(row, lambda moment: moment + self._offset_ns)
        return to_json({"schema_version": SCHEMA_VERSION, **shifted}) + "\n"


def with_moments(row: Row, convert: Callable[[int], int]) -> Row:
    """Return a row with each of its moments converted: the values whose keys end in `_ns`."""
    return {key: convert(value) if key.endswith("_ns") else value for key, value in row.items()}


def shift_moments(attempt: Path, rank: int, convert: Callable[[int], int]) -> None:
    """Convert the moments in all rows that a rank has written."""
    for kind in ROWS:
        if (path := attempt / f"{kind}.rank{rank}.jsonl").exists():
            write_text(path, "".join(to_json(with_moments(row, convert)) + "\n" for row in json_lines(path)))


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, which knows no NaN and no infinity: such a number becomes null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_with_nulls(value), indent=indent, allow_nan=False)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_nulls(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; raises as `write_text`."""
    write_text(path, to_json(value, 2) + "\n")


def write_schedule(attempt: Path, schedule: Schedule) -> None:
    """Write the schedule that the attempt runs to `schedule.txt`; raises as `write_text`."""
    write_text(attempt / "schedule.txt", to_text(schedule))


def last_attempt(run: Path) -> int:
    """Return the number of a run's last attempt, 0 if there is none."""
    return max((number_of(path) for path in attempts(run)), default=0)


def new_attempt(runs: Path, run_id: str, number: int = 1) -> Path:
    """Make and return the next `attempt-<n>` folder of a run below `runs`; n is at least `number`.

    Raises:
        WriteError: the folder cannot be made, for example because a part of its path is a file or a broken link.
    """
    run = runs / run_id
    attempt = run / f"attempt-{max(number, last_attempt(run) + 1)}"
    try:
        run.mkdir(parents=True, exist_ok=True)
        attempt.mkdir()
    except OSError as error:
        raise unwritable(Path(error.filename), error) from error
    return attempt
