"""Timelines of the last measured step of a run, replayed above measured, or of several runs.

    python -m analysis.timeline RUN         its id, or outputs/runs/<run>/attempt-<n>

Several runs are drawn one above the other on one time axis, as measured:

    python -m analysis.timeline outputs/runs/gpipe-* outputs/runs/1f1b-*

The replay simulates the schedule with the step's own median F and B times of each stage and its
median hop time; it differs from the measurement by noise and overhead. Of several replicas the
first is drawn, with the sums over all replicas, replayed and measured.
"""

from __future__ import annotations

import hashlib
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis import plot
from analysis.command import OUTPUTS, absent, command_parser, read_report
from microp.job import LATER
from microp.records import (
    RecordError,
    TracedStep,
    attempts,
    check_attempt,
    clocks_text,
    disturbances,
    read_config,
    read_env,
    read_status,
    read_summary,
    read_traced_step,
    row_files,
)
from microp.results import HOW, swept, unscaled
from microp.schedule import Schedule
from microp.system import CommandParser, run_command
from microp.terminal import console, out
from microp.trace import Reduction, Span, figure, perfetto, timeline

REMEDY = "give a run's id, or a folder below outputs/runs"


def main(arguments: list[str] | None = None) -> int:
    """Draw the last measured step of a run, replayed above measured, or of several runs, as text and as a figure."""
    parser = command_parser("analysis.timeline", main.__doc__)
    parser.add_argument(
        "run",
        type=Path,
        nargs="+",
        help="a run's id, an attempt, or a folder: its newest attempt; several on one time axis",
    )
    options, folder = read_report(parser, arguments)
    runs = [_traced(parser, folder) for folder in options.run]
    drawn = _alone(runs[0]) if len(runs) == 1 else _together(runs)
    lines = timeline(drawn.panels, out.width, sums=drawn.sums, **drawn.about)
    print(textwrap.fill(drawn.title, out.width, break_on_hyphens=False))
    console.draw(lines)
    print()
    for name, run in zip(drawn.names, runs, strict=True):
        if (times := run.summary["time_ms"]) is not None:
            replicas = run.summary["replicas"]
            heading = [name] * bool(name) + [f"means over the {replicas} replicas"] * (replicas > 1)
            print(", ".join(heading) + ":\n" * bool(heading) + time_table(times, out.width) + "\n")
    print(textwrap.fill(_meanings([run.summary["time_ms"] or {} for run in runs]), out.width) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / drawn.file
    shown = runs[0].step.marked(bool(runs[0].doubt)) if len(runs) == 1 else drawn
    files = figure(shown.panels, drawn.title, path, sums=shown.sums, width=plot.WIDTH)
    files.append(perfetto(drawn.panels, drawn.schedules, path.with_name(f"{drawn.file}.trace.json")))
    print(files[0], *(file.suffix for file in files[1:-1]))
    print(files[-1])
    return 0


class _Run(NamedTuple):
    """An attempt with its summary and its traced step."""

    attempt: Path
    summary: dict[str, Any]
    step: TracedStep

    @property
    def doubt(self) -> str:
        """What stands behind its name if its times are not to be trusted; its last step may differ from most."""
        is_disturbed = "status" in self.summary and disturbances(self.summary, read_env(self.attempt))
        return f" (disturbed, median step {self.summary['step_ms']['median']:.4g} ms)" if is_disturbed else ""

    @property
    def summed(self) -> str:
        """The same if sums of gradients, behind the last action, are not in the time of what is drawn."""
        text = f" (median step with its sums {self.summary['step_ms']['median']:.4g} ms)"
        return text * any((self.summary["time_ms"] or {}).get("reduction", ()))


class _Drawing(NamedTuple):
    """What is drawn: panels by their name, and what `timeline` tells about them; the name of one run alone is empty."""

    title: str
    file: str
    names: list[str]
    panels: Mapping[str, Sequence[Span]]
    sums: Mapping[str, Sequence[Reduction]]
    schedules: Mapping[str, Schedule]
    about: dict[str, Any]


def _traced(parser: CommandParser, folder: Path) -> _Run:
    """Return the newest attempt with a trace in a folder or of a run's id, or end the command with what is wrong."""
    if not folder.exists() and (OUTPUTS / "runs" / folder).is_dir():
        folder = OUTPUTS / "runs" / folder
    if not folder.is_dir():
        parser.error(f"{absent(folder)}: {REMEDY}")
    traced, damaged = newest_traced(folder)
    for reason in damaged if traced else damaged[:-1]:
        print(f"left out: {reason}", file=sys.stderr)
    if traced is None:
        parser.error(damaged[-1] if damaged else f"{folder} holds no attempt with a trace: {REMEDY}")
    if (step := read_traced_step(*traced)) is None:
        parser.error(f"{traced[0]} has an empty trace: run its command again")
    return _Run(*traced, step)


def _alone(run: _Run) -> _Drawing:
    """Return the drawing of a run: its step replayed above measured."""
    attempt, summary, (schedule, panels, sums) = run
    clocks = clocks_text(summary)
    title = f"{attempt.parent.name}, {attempt.name}: last measured step{_kind(run)}{run.doubt}"
    about = {"predicted": summary.get("predicted"), "replicas": summary["replicas"], "clocks": clocks}
    schedules, file = dict.fromkeys(panels, schedule), f"timeline-{attempt.parent.name}-{attempt.name}"
    return _Drawing(f"{title}; {clocks}" if clocks else title, file, [""], panels, sums, schedules, about)


def _together(runs: Sequence[_Run]) -> _Drawing:
    """Return the drawing of several runs, measured, one above the other on one time axis."""
    ids = [f"{run.attempt.parent.name}, {run.attempt.name}" for run in runs]
    short = [name.rpartition("-")[0] for name in (run.attempt.parent.name for run in runs)]  # without the hash
    configs = [{**LATER, **read_config(run.attempt)} for run in runs]
    keys = swept(configs)
    usual = ("schedule", "chunks", "ranks", "tracking", "steps", "warmup_steps")
    told = [key for key in keys if key.partition(".")[0] not in usual]
    unlike = [key for key in told if key.partition(".")[0] not in HOW]

    def named(shown: Sequence[str]) -> list[str]:
        return [" ".join([name, *(f"{key}={keys[key][at]}" for key in shown)]) for at, name in enumerate(short)]

    tried = named([key for key in told if key not in unlike]), named(told)
    names = next((names for names in tried if len(set(names)) == len(runs)), ids)
    names = [f"{name}{_kind(run)}{run.doubt or run.summed}" for name, run in zip(names, runs, strict=True)]
    panels = {name: run.step.panels["measured"] for name, run in zip(names, runs, strict=True)}
    sums = {name: run.step.sums["measured"] for name, run in zip(names, runs, strict=True)}
    schedules = {name: run.step.schedule for name, run in zip(names, runs, strict=True)}
    file = f"timelines-{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:8]}"
    reason = unscaled(configs) or f"they do not compare: they differ in {', '.join(unlike)}" * bool(unlike)
    title = f"{len(runs)} runs on one time axis, the last measured step of each{'; ' * bool(reason)}{reason}"
    return _Drawing(title, file, names, panels, sums, schedules, {"compares": not reason})


def _kind(run: _Run) -> str:
    return " (emulated)" * (run.summary.get("device") == "emulated")


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

    If that has no room, there is a line per kind; if that has none either, columns stand below, with the ranks again.
    """
    times = pd.DataFrame(time_ms).rename(index="rank {}".format).rename_axis(columns="ms")
    times = times.loc[:, [kind for kind in times if _is_shown(times[kind])]].assign(sum=times.sum(axis="columns"))
    tables = [
        frame.to_string(float_format=form.format, line_width=columns)
        for frame in (times, times.T.rename_axis(index=None, columns="ms"))
        for form in ("{:.2f}", "{:.1f}", "{:.0f}")
    ]
    table = next((table for table in tables if "\\\n" not in table), tables[0])
    return table.replace("  \\\n", "\n")  # pandas marks a table that goes on below


def _is_shown(times: Iterable[float]) -> bool:
    """Return whether a kind of time has a column: it is 0.01 ms or more on some rank."""
    return max(times) >= 0.005


def _meanings(every: Sequence[dict[str, list[float]]]) -> str:
    """Return what the columns of these tables mean, of those that need a word."""
    shown = {kind for times in every for kind, own in times.items() if _is_shown(own)}
    told = [f"{kinds}: {text}" for kinds, text in MEANINGS.items() if shown & {*kinds.split(", ")}]
    whole = "sum: the whole step, also what is before the first action and after the last one"
    return f"{'; '.join([*told, whole])}. Every column: analysis/README.md."


MEANINGS = {
    "host": "the rest, in which Python runs",
    "transfer": "waits for a tensor that is being sent",
    "warmup, steady, drain": "waits for another rank",
    "reduction": "waits for the sum over replicas or copies",
}


if __name__ == "__main__":
    run_command(main)
