"""Reads the files of an attempt, which `recorder` writes.

::

    outputs/runs/<run id>/attempt-<n>/
        config.yaml  env.json  status.json      configuration, machine and versions, state
        schedule.txt                            the order that was run
        steps.rank<r>.jsonl                     one `StepRow` per step
        spans.rank<r>.jsonl                     the trace of the last measured step
        reductions.rank<r>.jsonl                its sums over the replicas, if there are several
        summary.json                            the numbers of the whole run
        error.rank<r>.json  logs/               if something went wrong

`status` is `running`, and at the end `finished`, `failed`, `interrupted` (Ctrl-C) or `diverged` (the loss or the
weights were not finite). One that is `running` on disk is read as `killed` if its process has gone; see `lock`.
A number that is not finite is null everywhere.

Each rank writes only its own files, and writes a step's row before the next step. With replicas,
the number in a file's name counts the ranks of all replicas, replica after replica; in a row,
`rank` is the rank within its pipeline and `replica` the number of that pipeline.

A row's `..._ns` are moments of the host's monotonic clock, which all its ranks share; `ended` is the same moment as
`ended_ns` in seconds since 1970.

`schema_version` is in every row of a step, span or reduction, in `summary.json` and in a sweep's `plan.json`. It is 3
since an input gradient is an I; in version 2 it was a B beside a W, and a full backward on a stage with W an X in
`action_ms`. Before 22 November 2026 there was none, and runs had neither `question_id` nor `schedule.txt`.

Each reader raises RecordError with the file's name. `check_attempt` asks all of them: a damaged record costs that
attempt and no other. Reports leave it out and name the file, a sweep runs its point again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

import yaml

from microp.records.lock import has_gone
from microp.schedule import Op, Schedule, from_text, with_input_gradients
from microp.trace import MOMENTS, Reduction, Span, Spans, as_spans

Row = dict[str, Any]
T = TypeVar("T")
SCHEMA_VERSION = 3
_CONFIG = ("ranks", "chunks", "repeat", "schedule", "model", "device", "tracking")  # what readers need
_ENV = ("cores", "commit", "processor")
_SUMMARY = ("run_id", "question_id", "status", "schedule", "chunks", "ranks", "replicas", "step_ms", "bubble")
ROWS = ("steps", "spans", "reductions")  # the kinds of files with rows, one file per rank
MOST_ROWS = 2**15  # of all ranks, of those that `read_some_rows` reads
PIECE = 64  # consecutive rows of a rank
AGAIN = "run its command again"
RUNNING, KILLED, DIVERGED = "running", "killed", "diverged"
_ATTEMPT = re.compile(r"attempt-[0-9]+")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast


class StepRow(TypedDict, total=False):
    """A row of `steps.rank<r>.jsonl`: what a rank measured in one step. A new column goes here and into `worker`.

    `read_rows` returns such rows as plain dictionaries, because older ones lack columns.
    """

    phase: str  # `warmup`, `measured` or `memory`
    step: int
    rank: int
    replica: int
    engine: str
    sync: str
    loss: float | None  # the replica's part of the batch's loss, on the rank of the last stage; None on others
    began_ns: int
    ended_ns: int
    ended: float
    step_ms: float  # the pipeline, the sums over the replicas and the optimizer
    pipeline_ms: float
    optimizer_ms: float
    all_reduce_ms: float  # in which any sum over the replicas ran
    exposed_ms: float  # of the sums, after the rank's last action
    reduced_bytes: int
    compute_ms: float  # in all actions
    wait_ms: float  # for the inputs of all actions
    first_start_ns: int
    last_end_ns: int
    action_ms: dict[str, float]  # stage and op, as `0F` -> the mean of one
    recompute_ms: float
    overruns: int  # actions and sums of an emulated device that outlasted their nominal time
    work_ms: float  # the real work in actions of an emulated device
    queued_ms: float | None  # in which the rank could have run and had no core; None if the system does not say
    snapshot_ms: float  # to save a snapshot before the step
    # only in the memory step: `PEAKS`, and what nvidia-smi told
    peak_memory_mib: float
    peak_allocated_mib: float
    peak_reserved_mib: float
    smi_percent: float
    peak_activation_mib: float
    in_flight_peak: float


PEAKS = ("peak_memory_mib", "peak_allocated_mib", "peak_reserved_mib", "peak_activation_mib", "in_flight_peak")


class RecordError(ValueError):
    """A record cannot be read; the message names the file, the reason and the remedy."""


def attempts(folder: Path) -> list[Path]:
    """Return all attempts below `folder` (an outputs folder, a runs folder, a run or an attempt)."""
    folders = [path for path in (folder, *folder.rglob("attempt-*")) if _ATTEMPT.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: (path.parent.name, number_of(path)))


def number_of(attempt: Path) -> int:
    """Return n of `attempt-<n>`."""
    return int(attempt.name.removeprefix("attempt-"))


class Records(NamedTuple):
    """What is recorded of a whole attempt, once."""

    status: dict[str, Any]
    config: dict[str, Any]
    env: dict[str, Any]
    summary: dict[str, Any] | None


def check_attempt(attempt: Path) -> Records:
    """Return the single records of an attempt, in any state, after reading all of its files.

    Raises:
        RecordError: a file cannot be read; or the attempt has finished, and a file is missing or lacks rows.
    """
    status = read_status(attempt)
    finished = status["status"] == "finished"
    if not (finished or (attempt / "config.yaml").exists()):
        raise RecordError(f"{attempt} is {status['status']}, and had not written yet what it was to run: {AGAIN}")
    summary = read_summary(attempt) if finished or (attempt / "summary.json").exists() else None
    records = Records(status, read_config(attempt), read_env(attempt), summary)
    read_errors(attempt)
    ranks, replicas = records.config["ranks"], records.config.get("replicas", 1)
    read_some_rows(attempt, ranks * replicas)
    steps = {rank: count_lines(attempt / f"steps.rank{rank}.jsonl") for rank in range(ranks * replicas)}
    traces = [read_spans(attempt, replica) for replica in range(replicas)]
    for replica in range(replicas):
        read_reductions(attempt, replica)
    if finished or (attempt / "schedule.txt").exists():
        order = read_schedule(attempt)
    if finished:
        for rank, rows in steps.items():
            _check_length(attempt, "steps", rank, rows, max(1, *steps.values()))
            if summary and summary.get("time_ms"):  # every rank has left its trace
                spans = int((traces[rank // ranks].rank == rank % ranks).sum())
                _check_length(attempt, "spans", rank, spans, len(order.ranks[rank % ranks]))
    return records


def _check_length(attempt: Path, kind: str, rank: int, rows: int, written: int) -> None:
    if rows != written:
        raise unreadable(attempt / f"{kind}.rank{rank}.jsonl", f"it has {rows} of {written} rows")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or raise RecordError: it cannot be read."""
    return _parsed(path, json.loads, AGAIN)


def read_config(attempt: Path) -> dict[str, Any]:
    """Return the resolved configuration of an attempt as plain values; raises as `read_json`."""
    return read_record(attempt / "config.yaml", _CONFIG, parse=lambda text: yaml.load(text, _Loader))


def read_env(attempt: Path) -> dict[str, Any]:
    """Return the machine and the versions of an attempt; raises as `read_json`."""
    return read_record(attempt / "env.json", _ENV)


def read_status(attempt: Path) -> dict[str, Any]:
    """Return the state of an attempt, with at least `status` and `started`; raises as `read_json`.

    The state of an attempt that never ended, and whose process has gone, is `killed`.
    """
    status = read_record(attempt / "status.json", ("status", "started"))
    if status["status"] != RUNNING or (gone := has_gone(status)) is False:
        return status
    if gone:
        reason = f"process {status.get('pid')}, which ran it, has gone and recorded no end: run its command again"
        return {**status, "status": KILLED, "message": reason}
    where = f"on {status['host']}" if "host" in status else "under an older microp"
    return {**status, "message": f"it was started {where}: whether it still runs cannot be told from here"}


def _parsed(path: Path, parse: Callable[[str], Any], remedy: str) -> Any:
    try:
        return parse(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise unreadable(path, error, remedy) from error


def read_record(
    path: Path, needed: Iterable[str], remedy: str = AGAIN, parse: Callable[[str], Any] = json.loads
) -> dict[str, Any]:
    """Return the keys and values in a file, those that are needed among them; raises as `read_json`."""
    record = _parsed(path, parse, remedy)
    if not isinstance(record, dict):
        raise unreadable(path, "it does not hold keys and values", remedy)
    check_version(record, path)
    if missing := [key for key in needed if key not in record]:
        raise unreadable(path, f"it has no {', '.join(missing)}", remedy)
    return record


def unreadable(path: Path, reason: str | Exception, remedy: str = AGAIN) -> RecordError:
    """Return the error that names a file, why it cannot be read, and the remedy."""
    if isinstance(reason, Exception):
        reason = getattr(reason, "strerror", None) or str(reason).partition("\n")[0] or repr(reason)
    return RecordError(f"{path} cannot be read ({reason}): {remedy}")


def read_rows(attempt: Path, rank: int) -> list[Row]:
    """Return the rows of a rank's steps, without a last line that a kill cut short.

    Raises:
        RecordError: a newer microp wrote the file, or it does not hold rows.
    """
    path = attempt / f"steps.rank{rank}.jsonl"
    return list(map(_with_ops, json_lines(path))) if path.exists() else []


def _with_ops(row: Row) -> Row:
    """Return a step's row with the letters of version 3 in `action_ms`."""
    times = row.get("action_ms")
    if times and row.get("schema_version", 1) < 3:
        letters = {"B": "I", "X": "B"}
        divided = {name[:-1] for name in times if name[-1] == "W"}
        row["action_ms"] = {
            name[:-1] + letters.get(name[-1], name[-1]) if name[:-1] in divided else name: ms
            for name, ms in times.items()
        }
    return row


def read_some_rows(attempt: Path, ranks: int) -> list[list[Row]]:
    """Return the rows of each rank, of a run of very many steps those of evenly spread pieces of it and of its end.

    A median over some thousand steps is that over a million, whose rows would need gigabytes. All ranks have the rows
    of the same steps, and a piece is long enough for engines that run steps in turn. Raises as `read_rows`.
    """
    paths = [attempt / f"steps.rank{rank}.jsonl" for rank in range(ranks)]
    lines = max((count_lines(path) for path in paths), default=0)
    every = -(-lines * ranks // MOST_ROWS)  # one of this many pieces is read
    if every < 2:
        return [read_rows(attempt, rank) for rank in range(ranks)]

    def is_read(line: int) -> bool:
        return line // PIECE % every == 0 or line >= lines - PIECE

    return [list(map(_with_ops, json_lines(path, is_read))) if path.exists() else [] for path in paths]


def count_lines(path: Path) -> int:
    """Return the number of lines of a file, 0 if it is not there or cannot be read; it is not held in memory."""
    try:
        with path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(partial(file.read, 2**20), b""))
    except OSError:
        return 0


def row_files(attempt: Path, kind: str) -> list[Path]:
    """Return the files with rows of a kind (one of ROWS), in the order of the ranks that wrote them."""
    return sorted(attempt.glob(f"{kind}.rank*.jsonl"), key=rank_of)


def rank_of(path: Path) -> int:
    """Return r of `<kind>.rank<r>.jsonl` and `error.rank<r>.json`, -1 if it is no number."""
    match = re.fullmatch(r"\w+\.rank([0-9]+)\.jsonl?", path.name)
    return int(match[1]) if match else -1


def read_spans(attempt: Path, replica: int = 0) -> Spans:
    """Return the trace of the last measured step of one replica, empty if there is none; raises as `read_rows`."""
    return as_spans(with_input_gradients([_trace(attempt, "spans", replica, _span)])[0])


def _span(row: Row) -> Span:
    moments = [row[f"{moment}_ns"] for moment in MOMENTS]
    return Span(row["rank"], Op(row["op"]), row["stage"], row["microbatch"], *moments)


def read_reductions(attempt: Path, replica: int = 0) -> list[Reduction]:
    """Return one replica's sums in the last measured step, none if it is the only one; raises as `read_rows`."""
    keys = ("rank", "stage", "start_ns", "end_ns")
    return list(_trace(attempt, "reductions", replica, lambda row: Reduction(*(row[key] for key in keys))))


def _trace(attempt: Path, kind: str, replica: int, parse: Callable[[Row], T]) -> Iterator[T]:
    for path in row_files(attempt, kind):
        for row in json_lines(path):
            if row.get("replica", 0) == replica:
                try:
                    yield parse(row)
                except (KeyError, TypeError, ValueError) as error:
                    raise unreadable(path, f"a row is not one of {kind}: {error!r}") from error


def read_schedule(attempt: Path) -> Schedule:
    """Return the schedule that an attempt ran; raises as `read_json`."""
    schedule: Schedule = _parsed(attempt / "schedule.txt", from_text, AGAIN)
    return schedule


def read_summary(attempt: Path) -> dict[str, Any]:
    """Return the numbers of a run.

    Raises:
        RecordError: a newer microp wrote the file, or it is not a summary.
    """
    return read_record(attempt / "summary.json", _SUMMARY)


def check_version(record: Mapping[str, Any], path: Path) -> None:
    """Raise RecordError if a newer microp than this one wrote the record."""
    version = record.get("schema_version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema_version={version}, and this microp reads up to {SCHEMA_VERSION}: update microp"
        )


def read_errors(attempt: Path) -> list[Row]:
    """Return the errors that the ranks wrote, the likely cause first and the errors that it caused after it.

    Raises:
        RecordError: a file cannot be read.
    """
    errors = [read_record(path, ("lost_peer", "time")) for path in sorted(attempt.glob("error.rank*.json"))]
    return sorted(errors, key=lambda error: (error["lost_peer"], error["time"]))


def json_lines(path: Path, wanted: Callable[[int], bool] = lambda _: True) -> Iterator[Row]:
    """Yield the rows of a file, without a last line that was cut short, after checking the version of the first row.

    `wanted` tells whether a line is read, by its number from 0; the first line always is.

    Raises:
        RecordError: a newer microp wrote the file, or a whole line is no row.
    """
    try:
        with path.open() as lines:
            for number, line in enumerate(lines):
                if number and not wanted(number):
                    continue
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
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
