"""Finds damaged records: every reader of runs asks here before it uses an attempt.

::

    status.json  config.yaml  env.json  error.rank<r>.json     present, whole, and of the form that readers expect
    summary.json                                               the same, if the attempt finished
    schedule.txt  steps  spans  reductions                     every row is one; if the attempt finished: all rows
                                                               that were written, and a span for each action

At the end of an attempt `status.json` gets the length and the CRC-32 of every file. A file that is shorter now, or is
missing, is damaged; if one is otherwise not as it was written, and in records of an older microp, the content decides.
An attempt that did not finish may lack files, and its last rows may be cut short. A damaged record costs that
attempt and no other: reports leave it out and name the file, a sweep runs its point again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from microp.schedule import Schedule
from microp.store.files import check_regular
from microp.store.records import (
    ROWS,
    Row,
    error_files,
    json_lines,
    read_config,
    read_env,
    read_errors,
    read_reductions,
    read_schedule,
    read_spans,
    read_status,
    read_summary,
    row_files,
    unreadable,
)

_NUMBER = (int, float)
_NUMBER_OR_NULL = (int, float, type(None))
_TEXT_OR_NULL = (str, type(None))
_MAP_OR_NULL = (dict, type(None))
_LIST_OR_NULL = (list, type(None))
Form = Mapping[str, type | tuple[type, ...]]  # dotted key -> its types; a key that ends in ? may be absent
FORMS: dict[str, Form] = {
    "status.json": {"message?": _TEXT_OR_NULL, "files?": dict},
    "config.yaml": {
        **dict.fromkeys(("ranks", "chunks", "repeat"), int),
        **dict.fromkeys(("batch_size?", "replicas?", "steps?", "seed?"), int),
        **dict.fromkeys((f"{group}.name" for group in ("schedule", "model", "device", "checkpointing", "engine")), str),
        **dict.fromkeys(("tracking", "launch"), dict),
    },
    "env.json": {
        "cores": (int, type(None)),
        "commit": _TEXT_OR_NULL,
        "processor": str,
        "experiment?": _TEXT_OR_NULL,
        "load?": dict,
        "load.start?": _NUMBER_OR_NULL,
        "load.end?": _NUMBER_OR_NULL,
        "wandb_agent?": dict,
    },
    "summary.json": {
        **dict.fromkeys(("run_id", "schedule"), str),
        **dict.fromkeys(("chunks", "ranks", "replicas"), int),
        **dict.fromkeys(("step_ms.median", "step_ms.p10", "step_ms.p90"), _NUMBER),
        "bubble": dict,
        **dict.fromkeys(
            ("bubble.measured", "samples_per_s?", "replayed.step_ms?", "replayed.bubble?", "bubble.closed_form?"),
            _NUMBER_OR_NULL,
        ),
        **dict.fromkeys(("steps?", "batch_size?", "overruns?"), int),
        **dict.fromkeys(("model?", "device?", "checkpointing?", "comms?"), str),
        **dict.fromkeys(("predicted.step_ms?", "predicted.bubble?"), _NUMBER_OR_NULL),
        "partition?": list,
        **dict.fromkeys(
            (
                "peak_memory_mib?",
                "peak_allocated_mib?",
                "peak_reserved_mib?",
                "peak_activation_mib?",
                "in_flight_peak?",
            ),
            _LIST_OR_NULL,
        ),
        **dict.fromkeys(
            ("time_ms?", "loss?", "engines?", "syncs?", "reduction?", "nominal?", "utilisation?"), _MAP_OR_NULL
        ),
    },
    "steps": {
        "phase": str,
        **dict.fromkeys(("step", "rank"), int),
        **dict.fromkeys(("began_ns", "ended_ns", "step_ms", "pipeline_ms", "optimizer_ms"), _NUMBER),
        **dict.fromkeys(("compute_ms?", "wait_ms?", "first_start_ns?", "last_end_ns?", "ended?"), _NUMBER),
        "loss": _NUMBER_OR_NULL,
        "action_ms?": dict,
    },
}


def checksums(attempt: Path) -> dict[str, list[int]]:
    """Return the length in bytes and the CRC-32 of each file of an attempt's record but `status.json`, by name."""
    single = [attempt / name for name in ("config.yaml", "env.json", "schedule.txt", "predicted.json", "summary.json")]
    found = [*single, *(path for kind in ROWS for path in row_files(attempt, kind)), *error_files(attempt)]
    contents = {path.name: _content(path) for path in found if path.exists()}
    return {name: [len(content), crc32(content)] for name, content in contents.items()}


def _content(path: Path) -> bytes:
    try:
        check_regular(path)
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error


def check_attempt(attempt: Path) -> None:
    """Raise RecordError if a record of an attempt is damaged or missing; the message names the file.

    Args:
        attempt: the attempt's folder, in any state.

    Raises:
        RecordError: see above; also if a newer microp wrote the attempt.
    """
    try:
        files = [(path.name, path.stat()) for path in attempt.iterdir() if not path.name.startswith(".")]  # no drafts
    except OSError as error:
        raise unreadable(attempt, error.strerror or str(error)) from error
    _check(attempt, tuple(sorted((name, found.st_mtime_ns, found.st_size) for name, found in files)))


@lru_cache(maxsize=10_000)
def _check(attempt: Path, _files: tuple[tuple[str, int, int], ...]) -> None:
    """Check an attempt as `check_attempt`; once as long as no file changes, because a sweep asks several times."""
    status = read_status(attempt)
    _check_form(attempt / "status.json", status)
    if _is_as_written(attempt, status.get("files", {})):
        if (attempt / "summary.json").exists():
            read_summary(attempt)  # which a newer microp may have written
        return
    _check_form(attempt / "config.yaml", read_config(attempt))
    _check_form(attempt / "env.json", read_env(attempt))
    read_errors(attempt)
    finished = status["status"] == "finished"
    counts = {kind: [_check_rows(path, kind, finished) for path in row_files(attempt, kind)] for kind in ROWS}
    if finished:
        summary = read_summary(attempt)
        if summary["status"] != "finished":
            raise unreadable(attempt / "summary.json", f"its status is {summary['status']}, and not finished")
        _check_form(attempt / "summary.json", summary)
        _check_counts(attempt, counts["steps"], summary)
        _check_trace(attempt, summary)
    else:
        if (attempt / "summary.json").exists():
            read_summary(attempt)
        if (attempt / "schedule.txt").exists():
            read_schedule(attempt)
        for replica in range(_replicas(attempt)):
            read_spans(attempt, replica)
            read_reductions(attempt, replica)


def _replicas(attempt: Path) -> int:
    return int(read_config(attempt).get("replicas", 1))


def _check_form(path: Path, record: Mapping[str, Any], name: str = "") -> None:
    """Raise RecordError if a record lacks a key that readers need, or has one of another type."""
    for key, types in FORMS[name or path.name].items():
        value: Any = record
        for part in key.removesuffix("?").split("."):
            if not isinstance(value, Mapping) or part not in value:
                if key.endswith("?"):
                    break
                raise unreadable(path, f"it has no {key}")
            value = value[part]
        else:
            if isinstance(value, bool) or not isinstance(value, types):
                raise unreadable(path, f"{key.removesuffix('?')}={str(value)[:40]} is not of the form that is expected")


def _check_rows(path: Path, kind: str, whole: bool) -> int:
    """Return the number of rows of a file, after checking each row."""
    number = 0
    for row in json_lines(path):
        number += 1
        if kind in FORMS:
            _check_form(path, row, kind)
    if whole and not _content(path).endswith(b"\n"):
        raise unreadable(path, "it is empty" if not number else "its last line is cut short")
    return number


def _is_as_written(attempt: Path, written: Mapping[str, Any]) -> bool:
    """Return whether no file has changed since the end of an attempt; False if it has not ended, or a person edited it.

    Raises:
        RecordError: a file is missing or has become shorter.
    """
    found = checksums(attempt)
    for name, known in written.items():
        if name not in found:
            raise unreadable(attempt / name, "it is missing")
        if found[name] != known and isinstance(known, list) and found[name][:1] < known[:1]:
            raise unreadable(attempt / name, f"it has {found[name][0]} bytes, and {known[0]} were written")
    return found == written


def _check_counts(attempt: Path, counts: list[int], summary: Row) -> None:
    """Raise RecordError if a rank of a finished attempt has not the rows of all steps."""
    for rank in range(summary["ranks"] * summary["replicas"]):
        path = attempt / f"steps.rank{rank}.jsonl"
        if not path.exists():
            raise unreadable(path, "it is missing")
        if counts[rank] != max(counts):
            raise unreadable(path, f"it has {counts[rank]} rows, and another rank has {max(counts)}")


def _check_trace(attempt: Path, summary: Row) -> None:
    """Raise RecordError if the schedule and the trace of a finished attempt do not belong to each other."""
    order = read_schedule(attempt)
    if (len(order.ranks), order.chunks) != (summary["ranks"], summary["chunks"]):
        raise unreadable(attempt / "schedule.txt", "it is not the schedule of summary.json")
    ranks, sums = summary["ranks"], row_files(attempt, "reductions")
    for replica in range(summary["replicas"]):
        spans = read_spans(attempt, replica)
        missing = set(range(ranks)) - {each.rank for each in read_reductions(attempt, replica)}
        if sums and missing:
            raise unreadable(attempt / f"reductions.rank{replica * ranks + min(missing)}.jsonl", "it has no sums")
        if summary.get("time_ms"):  # every rank has left its trace
            _check_spans(attempt, order, replica, spans)


def _check_spans(attempt: Path, order: Schedule, replica: int, spans: Any) -> None:
    for rank, actions in enumerate(order.ranks):
        own = sorted(span.action for span in spans if span.rank == rank)
        if own != sorted(actions):
            path = attempt / f"spans.rank{replica * len(order.ranks) + rank}.jsonl"
            raise unreadable(path, "its spans are not the actions of schedule.txt")
