"""Timelines of a run's last measured step, replayed above measured.

    python -m analysis.timeline outputs/runs/<run>/attempt-<n>

The replay simulates the schedule with the step's own median F and B times of each stage and its
median hop time; it differs from the measurement by noise and overhead. Of several replicas the
first is drawn, with the sums over all replicas, replayed and measured.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.command import absent, command_parser
from microp.records import (
    RecordError,
    attempts,
    check_attempt,
    clocks_text,
    read_config,
    read_status,
    read_summary,
    read_traced_step,
    row_files,
)
from microp.system import run_command
from microp.trace import figure, perfetto, screen, timeline

REMEDY = "give a folder below outputs/runs"


def main(arguments: list[str] | None = None) -> int:
    """Draw a run's last measured step, replayed above measured, as text and as a figure."""
    parser = command_parser("analysis.timeline", main.__doc__)
    parser.add_argument("run", type=Path, help="an attempt, or a folder, whose newest attempt is drawn")
    parser.add_argument(
        "--report", type=Path, default=Path("outputs/report"), help="folder for the files (default: outputs/report)"
    )
    options = parser.parse_args(arguments)
    if not options.run.is_dir():
        parser.error(f"{absent(options.run)}: {REMEDY}")
    traced, damaged = newest_traced(options.run)
    for reason in damaged if traced else damaged[:-1]:
        print(f"left out: {reason}", file=sys.stderr)
    if traced is None:
        parser.error(damaged[-1] if damaged else f"{options.run} holds no attempt with a trace: {REMEDY}")
    attempt, summary = traced
    step = read_traced_step(attempt, summary)
    if step is None:
        parser.error(f"{attempt} has an empty trace: run its command again")
    title = f"{attempt.parent.name}, {attempt.name}: last measured step"
    shown = screen()
    replicas, predicted = summary["replicas"], summary.get("predicted")
    clocks = clocks_text(summary)
    lines = timeline(step.panels, shown.columns, sums=step.sums, predicted=predicted, replicas=replicas, clocks=clocks)
    print(f"{title}\n{shown.text(lines)}\n")
    if summary["time_ms"]:
        if replicas > 1:
            print(f"means over the {replicas} replicas:")
        print(time_table(summary["time_ms"], shown.columns))
    options.report.mkdir(parents=True, exist_ok=True)
    place = options.report / f"timeline-{attempt.parent.name}-{attempt.name}"
    files = figure(step.panels, f"{title}; {clocks}" if clocks else title, place, sums=step.sums)
    files.append(perfetto(step.panels, step.schedule, place.with_name(f"{place.name}.trace.json")))
    for file in files:
        print(file)
    return 0


def newest_traced(folder: Path) -> tuple[tuple[Path, dict[str, Any]] | None, list[str]]:
    """Return the newest attempt with a trace, with its summary, and why newer ones cannot be read."""
    started, damaged = [], []
    for attempt in attempts(folder):
        try:
            started.append((float(read_status(attempt)["started"]), attempt))
        except RecordError as error:
            damaged.append(str(error))
    for _, attempt in sorted(started, reverse=True):
        try:
            check_attempt(attempt)
            if row_files(attempt, "spans"):
                return (attempt, _summary(attempt)), damaged
        except RecordError as error:
            damaged.append(str(error))
    return None, damaged


def _summary(attempt: Path) -> dict[str, Any]:
    """Return an attempt's summary; of one that was killed before it had one, what its configuration tells."""
    if (attempt / "summary.json").exists():
        return read_summary(attempt)
    config = read_config(attempt)
    return {"schedule": config["schedule"]["name"], "replicas": config.get("replicas", 1), "time_ms": None}


def time_table(time_ms: dict[str, list[float]], columns: int = 100) -> str:
    """Return a text table of the step's time in ms, kind -> its time on each rank: a line per rank, a column per kind.

    The kinds that have no room in this many columns stand below, with the ranks again.
    """
    times = pd.DataFrame(time_ms).rename(index="rank {}".format).rename_axis(columns="ms")
    times["sum"] = times.sum(axis="columns")
    table = times.to_string(float_format="{:.2f}".format, line_width=columns)
    return f"{table}\n\n{textwrap.fill(WAITS, columns)}\n"


WAITS = (
    "host: the rest, in which Python runs; transfer: waits for a tensor that is being sent; warmup, steady, drain: for "
    "another rank; reduction: for the sum over the replicas; sum: the whole step, also what is before the first action "
    "and after the last one. Every column: analysis/README.md."
)


if __name__ == "__main__":
    run_command(main)
