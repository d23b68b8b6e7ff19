"""Rows out to disk, rows in as frames: the store that everything else is made from.

::

    outputs/runs/<run id>/attempt-<n>/
        config.yaml  env.json  status.json      what was asked, where it ran, how it stands
        steps.rank<r>.jsonl                     one row a step
        spans.rank<r>.jsonl                     the trace of the last measured step
        reductions.rank<r>.jsonl                its sums over the replicas, where there are several
        summary.json                            the numbers of the whole run
        error.rank<r>.json  logs/               when something went wrong

Ranks write their own files and nobody else's; a row is on disk before the next step. With
replicas, the number in a file's name goes over all ranks, replica after replica; in a row,
`rank` is the one in its pipeline and `replica` says which pipeline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microp.reduction import Reduction
from microp.schedule import Action, Op
from microp.trace import Span

if TYPE_CHECKING:  # pandas is not imported by a rank
    import pandas as pd

Row = dict[str, Any]

# Not part of the question a run asks: where, how and whether it runs, and a limit that refuses and changes nothing.
NOT_ASKED = ("tracking", "launch", "output_dir", "activation_limit", "skip", "again")


class RankRecorder:
    """One rank's files of one attempt."""

    def __init__(self, attempt: Path, rank: int, replica: int = 0) -> None:
        self._attempt, self._rank, self._replica = attempt, rank, replica
        self._steps = (attempt / f"steps.rank{rank}.jsonl").open("w")

    def step(self, row: Row) -> None:
        """Append one row; it has left this process when this returns."""
        self._steps.write(json.dumps(row) + "\n")
        self._steps.flush()

    def spans(self, step: int, spans: Iterable[Span], asked: Iterable[int]) -> None:
        """Write the trace of one step; `asked` is when the rank began to wait for each span's input."""
        own = {"step": step, "replica": self._replica}
        rows = ({**own, **_span_row(span), "asked_ns": when} for span, when in zip(spans, asked, strict=True))
        lines = (json.dumps(row) for row in rows)
        (self._attempt / f"spans.rank{self._rank}.jsonl").write_text("\n".join(lines) + "\n")

    def reductions(self, step: int, found: Sequence[Reduction]) -> None:
        """Write one step's sums over the replicas; without any there is no file."""
        own = {"step": step, "replica": self._replica}
        rows = ({**own, "rank": r.rank, "stage": r.stage, "start_ns": r.start, "end_ns": r.end} for r in found)
        if found:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (self._attempt / f"reductions.rank{self._rank}.jsonl").write_text(text)

    def error(self, row: Row) -> None:
        """Say what went wrong on this rank."""
        write_json(self._attempt / f"error.rank{self._rank}.json", row)

    def close(self) -> None:
        self._steps.close()


def _span_row(span: Span) -> Row:
    names = {"start": "start_ns", "end": "end_ns", "ready": "ready_ns"}
    return {names.get(key, key): value for key, value in span._asdict().items()}


def write_json(path: Path, value: Any) -> None:
    """Write at once or not at all: a reader never sees half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value, indent=2) + "\n")
    draft.replace(path)


def new_attempt(runs: Path, run_id: str) -> Path:
    """Make the next `attempt-<n>` folder of a run; no attempt is ever written over."""
    number = 1
    while True:
        attempt = runs / run_id / f"attempt-{number}"
        try:
            attempt.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return attempt


# --- reading -----------------------------------------------------------------------------------


def read_rows(attempt: Path, rank: int) -> list[Row]:
    """The rows of a rank's steps, without a last line that was cut short by a kill."""
    path = attempt / f"steps.rank{rank}.jsonl"
    return list(_json_lines(path)) if path.exists() else []


def read_spans(attempt: Path, replica: int = 0) -> list[Span]:
    """The trace of the last measured step of one replica; empty if there is none."""
    return [
        Span(r["rank"], Op(r["op"]), r["stage"], r["microbatch"], r["start_ns"], r["end_ns"], r["ready_ns"])
        for r in _trace_rows(attempt, "spans", replica)
    ]


def read_asked(attempt: Path, replica: int = 0) -> dict[Action, int]:
    """For each action of that trace when its rank began to wait for its input, in nanoseconds."""
    rows = _trace_rows(attempt, "spans", replica)
    return {Action(Op(r["op"]), r["stage"], r["microbatch"]): r["asked_ns"] for r in rows}


def read_reductions(attempt: Path, replica: int = 0) -> list[Reduction]:
    """The sums over the replicas in that trace; empty if there is one replica."""
    rows = _trace_rows(attempt, "reductions", replica)
    return [Reduction(r["rank"], r["stage"], r["start_ns"], r["end_ns"]) for r in rows]


def _trace_rows(attempt: Path, kind: str, replica: int) -> Iterator[Row]:
    paths = sorted(attempt.glob(f"{kind}.rank*.jsonl"))
    return (row for path in paths for row in _json_lines(path) if row.get("replica", 0) == replica)


def read_errors(attempt: Path) -> list[Row]:
    """What the ranks said went wrong, the likely cause before its victims."""
    errors = [read_json(path) for path in attempt.glob("error.rank*.json")]
    return sorted(errors, key=lambda error: (error["lost_peer"], error["time"]))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def _json_lines(path: Path) -> Iterator[Row]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def attempts(folder: Path) -> list[Path]:
    """All attempts below `folder` (an outputs folder, a runs folder, a run or an attempt)."""
    found = [path.parent for path in folder.rglob("status.json")]
    return sorted(found, key=lambda path: (path.parent.name, int(path.name.removeprefix("attempt-"))))


def load_runs(folder: Path) -> pd.DataFrame:
    """The summaries of all attempts below `folder`, a row each, nested keys joined by dots."""
    import pandas as pd

    summaries = [
        {"attempt": path.name, "folder": str(path), **read_json(path / "summary.json")}
        for path in attempts(folder)
        if (path / "summary.json").exists()
    ]
    return pd.json_normalize(summaries)


def load_steps(attempt: Path) -> pd.DataFrame:
    """Every row of every rank of one attempt."""
    import pandas as pd

    ranks = len(list(attempt.glob("steps.rank*.jsonl")))
    return pd.DataFrame([row for rank in range(ranks) for row in read_rows(attempt, rank)])
