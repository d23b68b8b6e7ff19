"""Prints what a user sees: a progress bar, the table of results, and the commands to type next.

::

    2/6 1f1b-m8-k2-0c9a4b1e  ━━━━━━━━━╸━━━━  14/26 steps
    sweep                    ━━━━╸━━━━━━━━━  40/156       0:00:21 left
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from microp.app import places

POLL_S = 0.25  # between two looks at a rank's rows; long, because the ranks need the cores

out = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True, highlight=False)


class Board:
    """The progress bars of a sweep and of the point that runs."""

    def __init__(self) -> None:
        self.is_open = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            console=err,
            refresh_per_second=2,
            transient=True,
        )
        self._points = self._started = self._steps = 0

    def open(self, steps: Sequence[int]) -> None:
        """Start the bars for points with these numbers of steps."""
        self.is_open = True
        self._points, self._started, self._steps = len(steps), 0, 0
        self._sweep = self._progress.add_task("all points", total=sum(steps), visible=len(steps) > 1)
        if err.is_terminal:
            self._progress.start()

    @contextmanager
    def point(self, name: str, steps: int, rows: Path) -> Iterator[None]:
        """Show the progress of one run, read from the file `rows` that rank 0 writes."""
        if not self.is_open:  # a Hydra launcher runs this point in another process
            yield
            return
        self._started += 1
        label = f"{self._started}/{self._points} {name}" if self._points > 1 else name
        task = self._progress.add_task(label, total=steps)
        before = self._steps
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(POLL_S):
                done = rows.read_bytes().count(b"\n") if rows.exists() else 0
                self._progress.update(task, completed=done)
                self._progress.update(self._sweep, completed=before + done)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._progress.remove_task(task)
            self._steps = before + steps
            self._progress.update(self._sweep, completed=self._steps)
            if not err.is_terminal:
                err.print(label, soft_wrap=True)

    def close(self) -> None:
        """Remove the bars."""
        if not self.is_open:
            return
        if self._progress.live.is_started:
            self._progress.stop()
        self._progress.remove_task(self._sweep)
        self.is_open = False


VARIABLE = ("ranks", "replicas", "sync", "partition", "checkpointing", "model", "device", "comms", "batch_size", "seed")


def table(summaries: Sequence[dict[str, Any]]) -> Table:
    """Return a table with one row per point, and with a column for each key of VARIABLE in which the points differ."""
    varying = [key for key in VARIABLE if len({str(summary.get(key)) for summary in summaries}) > 1]
    grid = Table(pad_edge=False, box=None, header_style="bold")
    grid.add_column("schedule")
    for name in ("chunks", *varying, "step ms", "p10 - p90", "samples/s", "bubble", "formula"):
        grid.add_column(name, justify="right")
    grid.add_column("peak MiB per rank", justify="right")
    grid.add_column("loss", justify="right")
    grid.add_column("status")
    for summary in summaries:
        grid.add_row(*_cells(summary, varying))
    return grid


def _cells(summary: dict[str, Any], varying: Sequence[str]) -> Iterator[str]:
    step, loss, peaks = summary["step_ms"], summary["loss"], summary["peak_memory_mib"]
    yield summary["schedule"]
    yield str(summary["chunks"])
    yield from (str(summary.get(key, "-")) for key in varying)
    yield _number(step and step["median"], ".1f")
    yield f"{step['p10']:.1f} - {step['p90']:.1f}" if step else "-"
    yield _number(summary["samples_per_s"], ",.0f")
    yield _number(summary["bubble"]["measured"], ".3f")
    yield _number(summary["bubble"]["closed_form"], ".3f")
    yield " ".join(f"{peak:.1f}" for peak in peaks) if peaks else "-"
    yield f"{loss['first']:.2f} > {loss['last']:.2f}" if loss else "-"
    yield summary["status"]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


CAPTION = (
    "step ms: median of the measured steps, pipeline and optimizer. bubble: idle / total over all ranks, measured.\n"
    "formula: the bubble for equal layers and free transfers; - if there is no formula."
)


def show(summaries: Sequence[dict[str, Any]], output: Path, tracking: str) -> None:
    """Print the table, the failures and the commands to type next."""
    if not summaries:
        error("no point has a summary")
        return
    out.print(table(summaries))
    out.print(CAPTION, style="dim")
    for summary in summaries:
        if summary["message"]:
            error(f"{summary['folder']}: {summary['message']}")
    _warn_of_overruns(summaries)
    out.print()
    for what, command in _next_commands(summaries, output, tracking):
        out.print(f"{what:5} {command}", soft_wrap=True, markup=False)


def _warn_of_overruns(summaries: Sequence[dict[str, Any]]) -> None:
    """Warn of runs on emulated devices whose actions took longer than their nominal time."""
    for summary in summaries:
        if summary["overruns"]:
            where = f"{Path(summary['folder']).parent.name}: " if len(summaries) > 1 else ""
            warn(
                f"{where}{summary['overruns']} of {summary['actions']} actions took longer than their nominal time: "
                "they measure the machine, not the schedule"
            )


def show_prices(prices: Sequence[dict[str, Any]]) -> None:
    """Print a table of simulated schedules; a single one with its timeline."""
    grid = Table(pad_edge=False, box=None, header_style="bold")
    grid.add_column("schedule")
    names = ("ranks", "chunks", "makespan", "closed form", "gpipe", "megatron", "zero bubble", "in flight", "MiB")
    for name in names:
        grid.add_column(name, justify="right")
    for price in prices:
        bubble = price["bubble"]
        grid.add_row(
            price["schedule"],
            str(price["ranks"]),
            str(price["chunks"]),
            f"{price['makespan']:g}",
            _number(price["closed_form"]["makespan"], "g"),
            *(f"{bubble[name]:.4f}" for name in ("gpipe", "megatron", "zero_bubble")),
            _range(price["in_flight_peak"], "g"),
            _range(price["peak_memory_mib"], ".1f"),
        )
    out.print(grid)
    out.print(PRICE_CAPTION, style="dim")
    for price in prices if len(prices) == 1 else []:
        out.print()
        out.print(price["text"], soft_wrap=True, markup=False)
        known = price["closed_form"]["in_flight_peak"]
        form = f" (closed form {_listed(known)})" if known else ""
        out.print(f"in flight per rank: {_listed(price['in_flight_peak'])}{form}", soft_wrap=True)
        if (span := price["closed_form"]["largest_span"]) is not None:
            out.print(f"largest span of a rank by closed form: {span:g}", soft_wrap=True)
        if price["peak_memory_mib"]:
            out.print(f"peak MiB per rank:  {_listed(price['peak_memory_mib'], '.1f')}", soft_wrap=True)
        if sums := price["reduction"]:
            out.print(f"with the sums over the replicas: makespan {sums['makespan']:g}", soft_wrap=True)
            out.print(f"wait for the sums per rank: {_listed(sums['exposed'])}", soft_wrap=True)
    folders = [price["folder"] for price in prices if price["folder"]]
    if folders:
        out.print()
        for folder in folders:
            out.print(f"drawn {folder}: timeline.svg timeline.png trace.json schedule.txt schedule.csv", soft_wrap=True)
        out.print("open  a trace.json in ui.perfetto.dev", soft_wrap=True)


PRICE_CAPTION = (
    "bubbles: gpipe idle/total, megatron idle/ideal, zero bubble (largest span - work)/largest span.\n"
    "in flight: peak microbatches of a rank. MiB: peak of weights, gradients, Adam's state, activations. Ranges: ranks."
)


def _listed(values: Sequence[float], form: str = "g") -> str:
    return " ".join(format(value, form) for value in values)


def _range(values: Sequence[float] | None, form: str) -> str:
    if not values:
        return "-"
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} - {high}"


def _next_commands(summaries: Sequence[dict[str, Any]], output: Path, tracking: str) -> list[tuple[str, str]]:
    found = [("files", str(output / "runs"))]
    if tracking != "disabled":
        found.append(("look", f"{_program('wandb')} leet {output / 'wandb'}"))
    if tracking == "offline":
        found.append(("sync", f"{_program('wandb')} sync {output / 'wandb'}/offline-run-*"))
    finished = [summary for summary in summaries if summary["status"] == "finished"]
    if finished and places.has_analysis():
        found.append(("draw", f"{_program('python')} -m analysis.timeline {finished[-1]['folder']}"))
    return found


def _program(name: str) -> str:
    """Return the command of a program in this environment: its name if PATH finds it, else its path."""
    here = Path(sys.executable).parent
    if str(here) in os.environ.get("PATH", "").split(os.pathsep):
        return name
    return os.path.relpath(here / name)


def note(text: str) -> None:
    """Print a note on standard error."""
    err.print(text, style="dim", soft_wrap=True, markup=False)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    err.print(f"warning: {text}", style="yellow", soft_wrap=True, markup=False)


def error(text: str) -> None:
    """Print an error on standard error."""
    err.print(f"error: {text}", style="red", soft_wrap=True, markup=False)
