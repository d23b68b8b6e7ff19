"""An exhibit of the report: a figure, its table, and a caption that names their origin.

::

    Exhibit ── save ──► m-sensitivity-bubble.svg  .pdf  .png  .csv
                        the same rows give the same bytes of SVG and CSV
            ── origin ──► "From 72 runs of 24 configurations, 3 launches each ..."
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis import plot
from microp.records import RANGE_UP_TO
from microp.results import is_missing, records
from microp.trace import save

NUMBERS = "%.6g"  # in a CSV file: more digits than any measurement has
FIT = 3  # points that a line through them needs: a line through two has no error
NOT_FITTED = f"No line is fitted to fewer than {FIT} {{}}, because one through two has no error."  # points, as sizes
BARS = f"the range of up to {RANGE_UP_TO} launches, of more a 95 % bootstrap interval"


@dataclass(frozen=True)
class Exhibit:
    """One figure of the report."""

    stem: str  # the name of its files, without ending
    title: str  # a few words, for the heading
    caption: str  # a description of the figure and its result, to which `origin` adds
    figure: Figure  # the figure, made with `plot` and in its style
    table: pd.DataFrame  # the numbers that the figure shows
    runs: pd.DataFrame  # the rows of the store that were used
    answer: str = ""  # what the runs say, if the figure is the only one of its sweep

    def __post_init__(self) -> None:
        plot.head(self.figure, nominal_of(self.runs))
        plot.heighten(self.figure, 0)  # also a timeline fits on a page

    @property
    def origin(self) -> str:
        """The origin of the rows: numbers of runs, launches and steps, spread, commit, machine."""
        return provenance(self.runs)

    def save(self, folder: Path) -> list[Path]:
        """Write the figure as SVG, PDF and PNG and the table as CSV, and return the paths of the files."""
        folder.mkdir(parents=True, exist_ok=True)
        table = folder / f"{self.stem}.csv"
        self.table.to_csv(table, index=False, float_format=NUMBERS, lineterminator="\n")
        return [*save(self.figure, folder / self.stem), table]


class Section(NamedTuple):
    """One experiment of the report, or all sweeps of the user's own."""

    name: str  # that of its module
    title: str  # its heading
    answer: str  # what the runs say on the experiment's question; empty if there are none
    exhibits: Sequence[Exhibit]  # its figures, the best one first; none if there is nothing to draw
    missing: Sequence[str]  # the commands of the points that have not been run, or of a sweep that was never started
    started: bool = True  # whether the sweep was started


def nominal_of(runs: pd.DataFrame) -> str:
    """Return the line above a figure on how many of its runs are emulated; empty for none."""
    count, number = int((runs["device"] == "emulated").sum()), len(runs)
    which = "Emulated runs" if count == number else f"Emulated, {count} of {counted(number, 'run')}"
    return f"{which}: nominal action times" if count else ""


def kind_of(device: str) -> str:
    """Return the kind of computation on a device: "emulated", "imported" if another program ran it, "real compute"."""
    return {"emulated": "emulated", "foreign": "imported"}.get(device, "real compute")


def distance(measured: pd.Series[float], expected: pd.Series[float], digits: int = 1) -> str:
    """Return the relative distance of measured values from expected ones as text: its median and its maximum."""
    miss = (measured / expected - 1).abs()
    return f"{percent(miss.median(), digits)} in the median and {percent(miss.max(), digits)} at most"


def percent(fraction: Any, digits: int = 1) -> str:
    """Return a fraction in percent as text, as "0.7 %"."""
    return f"{100 * fraction:.{digits}f} %"


def provenance(runs: pd.DataFrame) -> str:
    """Return one or two sentences on the origin of rows: number of runs, spread, commit and machine."""
    if runs.empty:
        return "Computed, not measured."
    launches = runs.groupby("question").size()
    steps = runs["steps"]
    text = (
        f"From {counted(len(runs), 'run')} of {counted(len(launches), 'configuration')}, "
        f"{_range(launches)} {'launch' if launches.max() == 1 else 'launches'} each; "
        f"{_range(steps)} measured {'step' if steps.max() == 1 else 'steps'} per launch"
    )
    times = runs.groupby("question")["step_ms.median"]
    widths = ((times.max() - times.min()) / times.median())[launches > 1]
    if not widths.empty:
        apart = f"{percent(widths.median())} in the median and {percent(widths.max())} at most"
        text += f"; launches of a configuration differ in step time by {apart}"
    return f"{text}. Commit {commits(runs)}; {machines(runs)}."


def markers(runs: pd.DataFrame) -> str:
    """Return the sentence on a figure's markers, on their bars if launches repeat, and on how many were disturbed."""
    bars, noisy = f"medians over launches; bars: {BARS}, cut off where they are long", int(runs["disturbed"].sum())
    told = f"; {noisy} of {counted(len(runs), 'run')} {'was' if noisy == 1 else 'were'} disturbed" if noisy else ""
    return f"Markers: {bars if runs['question'].duplicated().any() else 'one launch each'}{told}."


def commits(runs: pd.DataFrame) -> str:
    """Return the commits that made the runs, as text."""
    return ", ".join(sorted({commit for commit in runs["env.commit"] if isinstance(commit, str)})) or "unknown"


def machines(runs: pd.DataFrame) -> str:
    """Return the machines that made the runs, as text."""
    known = [column for column in ("env.processor", "env.cores", "env.gpus") if column in runs]
    return " and ".join(sorted({*map(_machine, records(runs[known]))} - {""})) or "unknown machine"


def _machine(row: dict[str, Any]) -> str:
    """Return what is known of a run's machine; empty for nothing."""
    known = {key: value for key, value in row.items() if not is_missing(value)}
    cores = [counted(int(known["env.cores"]), "core")] if "env.cores" in known else []  # a float if a run has none
    return ", ".join(filter(None, [known.get("env.processor"), *cores, *map(str, known.get("env.gpus", []))]))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as "1 run" and "2 runs"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _range(values: pd.Series[int]) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low}-{high}"
