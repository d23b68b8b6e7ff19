"""Reads the files of an attempt, which `recorder` writes.

::

    outputs/runs/<run id>/attempt-<n>/
        config.yaml  env.json  status.json      configuration, machine and versions, state
        schedule.txt                            the order that was run
        steps.rank<r>.jsonl                     one row per step
        spans.rank<r>.jsonl                     the trace of the last measured step
        reductions.rank<r>.jsonl                its sums over the replicas, if there are several
        summary.json                            the numbers of the whole run
        error.rank<r>.json  logs/               if something went wrong

`status` is `running`, and at the end `finished`, `failed`, `interrupted` (Ctrl-C) or `diverged` (the loss was not
finite). One that is `running` on disk is read as `killed` if its process has gone; see `owner`. At the end `files` in
`status.json` has the length and the CRC-32 of each file, see `damage`. A number that is not finite is null everywhere.

Each rank writes only its own files, and writes a step's row before the next step. With replicas,
the number in a file's name counts the ranks of all replicas, replica after replica; in a row,
`rank` is the rank within its pipeline and `replica` the number of that pipeline.

A row's `..._ns` are moments of the host's monotonic clock, which all its ranks share; `ended` is the same moment as
`ended_ns` in seconds since 1970.

`schema_version` is in every row of a step, span or reduction, in `summary.json` and in a sweep's `plan.json`:

| version | since | changes |
|---|---|---|
| 1 | the first runs (no `schema_version`) | |
| 2 | 22 November 2026 | `question_id`, `schedule.txt`; `replayed` (was: predicted); spans have `wait_start_ns` |
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from microp.job import question_id
from microp.schedule import Op, Schedule, from_text, to_text
from microp.simulator import schedule_of
from microp.store.files import check_regular, parse_problem, read_text
from microp.store.owner import has_gone
from microp.trace import Reduction, Span, Spans, as_spans

Row = dict[str, Any]
T = TypeVar("T")
SCHEMA_VERSION = 2
_ALWAYS = ("run_id", "status", "schedule", "chunks", "ranks", "replicas", "step_ms", "bubble")  # in every summary
ROWS = ("steps", "spans", "reductions")  # the kinds of files with rows, one file per rank
RUNNING, KILLED, DIVERGED = "running", "killed", "diverged"
_ATTEMPT = re.compile(r"attempt-[0-9]+")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast


class RecordError(ValueError):
    """A record cannot be read; the message names the file, the reason and the remedy."""


def attempts(folder: Path) -> list[Path]:
    """Return all attempts below `folder` (an outputs folder, a runs folder, a run or an attempt)."""
    found = [folder] if _ATTEMPT.fullmatch(folder.name) and folder.is_dir() else []
    for parent, folders, _ in os.walk(folder):  # `rglob` takes three times as long, and looks into the attempts
        found += [Path(parent, name) for name in folders if _ATTEMPT.fullmatch(name)]
        folders[:] = [name for name in folders if not _ATTEMPT.fullmatch(name)]
    return sorted(found, key=lambda path: (path.parent.name, number_of(path)))


def number_of(attempt: Path) -> int:
    """Return n of `attempt-<n>`."""
    return int(attempt.name.removeprefix("attempt-"))


def read_json(path: Path) -> Any:
    return json.loads(read_text(path))


def read_config(attempt: Path) -> dict[str, Any]:
    """Return the resolved configuration of an attempt as plain values.

    Raises:
        RecordError: the file cannot be read.
    """
    return _read_record(attempt / "config.yaml", lambda text: yaml.load(text, _Loader))


def read_env(attempt: Path) -> dict[str, Any]:
    """Return the machine and the versions of an attempt; raises as `read_config`."""
    return _read_record(attempt / "env.json", json.loads)


def read_status(attempt: Path) -> dict[str, Any]:
    """Return the state of an attempt, with at least `status` and `started`; raises as `read_config`.

    The state of an attempt that never ended, and whose process has gone, is `killed`.
    """
    status = _read_record(attempt / "status.json", json.loads)
    if not isinstance(status.get("status"), str) or not isinstance(status.get("started"), int | float):
        raise unreadable(attempt / "status.json", "it lacks `status` or `started`")
    if status["status"] != RUNNING or (gone := has_gone(status)) is False:
        return status
    if gone:
        reason = f"process {status.get('pid')}, which ran it, has gone and recorded no end: run its command again"
        return {**status, "status": KILLED, "message": reason}
    where = f"on {status['host']}" if "host" in status else "under an older microp"
    return {**status, "message": f"it was started {where}: whether it still runs cannot be told from here"}


def _read_record(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        record = parse(read_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise unreadable(path, parse_problem(error)) from error
    if not isinstance(record, dict):
        raise unreadable(path, "it does not hold keys and values")
    return record


def unreadable(path: Path, reason: str) -> RecordError:
    """Return the error that names a file, why it cannot be read, and the remedy."""
    return RecordError(f"{path} cannot be read ({reason}): run its command again")


def read_rows(attempt: Path, rank: int) -> list[Row]:
    """Return the rows of a rank's steps, without a last line that a kill cut short.

    Raises:
        RecordError: a newer microp wrote the file, or it does not hold rows.
    """
    path = attempt / f"steps.rank{rank}.jsonl"
    return list(json_lines(path)) if path.exists() else []


def row_files(attempt: Path, kind: str) -> list[Path]:
    """Return the files with rows of a kind (one of ROWS), in the order of the ranks that wrote them."""
    return sorted(attempt.glob(f"{kind}.rank*.jsonl"), key=rank_of)


def rank_of(path: Path) -> int:
    """Return r of `<kind>.rank<r>.jsonl` and `error.rank<r>.json`, -1 if it is no number."""
    found = re.fullmatch(r"\w+\.rank([0-9]+)\.jsonl?", path.name)
    return int(found[1]) if found else -1


def read_spans(attempt: Path, replica: int = 0) -> Spans:
    """Return the trace of the last measured step of one replica, empty if there is none; raises as `read_rows`."""
    return as_spans(_trace(attempt, "spans", replica, _span))


def _span(row: Row) -> Span:
    wait_start = row["wait_start_ns"] if "wait_start_ns" in row else row.get("asked_ns", row["start_ns"])  # version 1
    rank, stage, microbatch = _numbers(row, "rank", "stage", "microbatch")
    ready, start, end = _numbers(row, "ready_ns", "start_ns", "end_ns")
    return Span(rank, Op(row["op"]), stage, microbatch, wait_start, ready, start, end)


def read_reductions(attempt: Path, replica: int = 0) -> list[Reduction]:
    """Return one replica's sums in the last measured step, none if it is the only one; raises as `read_rows`."""
    return list(_trace(attempt, "reductions", replica, _reduction))


def _reduction(row: Row) -> Reduction:
    return Reduction(*_numbers(row, "rank", "stage", "start_ns", "end_ns"))


def _numbers(row: Row, *keys: str) -> list[Any]:
    values = [row[key] for key in keys]
    if not all(isinstance(value, int | float) for value in values):
        raise TypeError(f"{keys} are not all numbers")
    return values


def read_schedule(attempt: Path) -> Schedule:
    """Return the schedule that an attempt ran; for version 1, which has no schedule.txt, it is read from the trace.

    Raises:
        RecordError: there is neither a schedule.txt nor a trace, or the file cannot be read.
    """
    if (path := attempt / "schedule.txt").exists():
        try:
            return from_text(read_text(path))
        except (OSError, ValueError) as error:
            raise unreadable(path, str(error).splitlines()[0]) from error
    if spans := read_spans(attempt):
        name = _read_record(attempt / "summary.json", json.loads).get("schedule")
        return schedule_of(spans, str(name))
    raise RecordError(f"{attempt} has neither schedule.txt nor a trace: run its command again")


def read_summary(attempt: Path) -> dict[str, Any]:
    """Return the numbers of a run, in the form of the current version.

    Raises:
        RecordError: a newer microp wrote the file, or it is not a summary.
    """
    path = attempt / "summary.json"
    summary = _read_record(path, json.loads)
    check_version(summary, path)
    if missing := [key for key in _ALWAYS if key not in summary]:
        raise unreadable(path, f"it has no {', '.join(missing)}")
    return summary if "schema_version" in summary else _from_version_1(attempt, summary)


def check_version(record: Mapping[str, Any], path: Path) -> None:
    """Raise RecordError if a newer microp than this one wrote the record."""
    version = record.get("schema_version", 1)
    if not isinstance(version, int):
        raise unreadable(path, f"schema_version={version} is not a whole number")
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema_version={version}, and this microp reads up to {SCHEMA_VERSION}: update microp"
        )


def _from_version_1(attempt: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary of version 1 with the names of version 2; a number that it lacks is None."""
    if not isinstance(summary["bubble"], dict):
        raise unreadable(attempt / "summary.json", f"bubble={summary['bubble']} does not hold keys and values")
    bubble = dict(summary["bubble"])
    found = {
        **summary,
        "schema_version": 1,
        "question_id": _question_of(attempt) if summary["status"] == "finished" else None,
        "replayed": {"step_ms": None, "bubble": bubble.pop("predicted", None)},
        "bubble": bubble,
    }
    if summary.get("reduction"):
        found["reduction"] = {key.replace("predicted_", "simulated_"): v for key, v in summary["reduction"].items()}
    return found


def _question_of(attempt: Path) -> str:
    """Return the question id of a finished attempt; others may have the trace of some ranks only."""
    config, order = read_config(attempt), to_text(read_schedule(attempt))
    try:
        return question_id(config, order)
    except (KeyError, TypeError, AttributeError) as error:
        raise unreadable(attempt / "config.yaml", f"it is not the configuration of a run: {error!r}") from error


def read_errors(attempt: Path) -> list[Row]:
    """Return the errors that the ranks wrote, the likely cause first and the errors that it caused after it.

    Raises:
        RecordError: a file cannot be read.
    """
    errors = map(_read_error, error_files(attempt))
    return sorted(errors, key=lambda error: (error["lost_peer"], error["time"]))


def error_files(attempt: Path) -> list[Path]:
    """Return the files with the errors of ranks."""
    return sorted(attempt.glob("error.rank*.json"))


def _read_error(path: Path) -> Row:
    error = _read_record(path, json.loads)
    if not isinstance(error.get("lost_peer"), bool) or not isinstance(error.get("time"), int | float):
        raise unreadable(path, "it lacks `lost_peer` or `time`")
    return error


def _trace(attempt: Path, kind: str, replica: int, parse: Callable[[Row], T]) -> Iterator[T]:
    for path in row_files(attempt, kind):
        for row in json_lines(path):
            if row.get("replica", 0) == replica:
                try:
                    yield parse(row)
                except (KeyError, TypeError, ValueError) as error:
                    raise unreadable(path, f"a row is not one of {kind}: {error!r}") from error


def json_lines(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, without a last line that was cut short, after checking the version of the first row.

    Raises:
        RecordError: a newer microp wrote the file, or a whole line is no row.
    """
    try:
        check_regular(path)
        with path.open() as lines:
            for number, line in enumerate(lines):
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    if line.endswith("\n"):
                        raise unreadable(path, f"line {number + 1} is not JSON") from None
                    return
                if not isinstance(row, dict):
                    raise unreadable(path, f"line {number + 1} does not hold keys and values")
                if number == 0:
                    check_version(row, path)
                yield row
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(path, parse_problem(error)) from error
