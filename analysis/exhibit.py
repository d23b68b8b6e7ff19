"""A figure, its table, and where both come from.

::

    Exhibit ── save ──► m-sensitivity-bubble.svg  .png  .csv
                        the same rows give the same bytes of SVG and CSV
            ── caption ──► "Bubble against chunks. 72 runs: 24 points of 3 launches ... commit, machine"
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.store import records

NUMBERS = "%.6g"  # in a CSV: more digits than any of them has


@dataclass(frozen=True)
class Exhibit:
    """One figure of the report.

    Attributes:
        stem: of its files.
        title: a few words.
        caption: what is drawn, and what it is drawn of; provenance is added to it.
        figure: made through `plot`, whose style it has.
        table: the numbers that are drawn.
        runs: the rows of the store that went into it.
        missing: commands that make the points that are not there.
    """

    stem: str
    title: str
    caption: str
    figure: Figure
    table: pd.DataFrame
    runs: pd.DataFrame
    missing: Sequence[str] = ()

    def full_caption(self) -> str:
        """The caption, then how many runs, launches and steps, their spread, the commit and the machine."""
        return f"{self.caption.rstrip()} {provenance(self.runs)}"

    def save(self, folder: Path) -> list[Path]:
        """Write the figure as SVG and PNG and the table as CSV; gives the files."""
        folder.mkdir(parents=True, exist_ok=True)
        vector, pixels, table = (folder / f"{self.stem}.{ending}" for ending in ("svg", "png", "csv"))
        self.figure.savefig(vector, metadata={"Date": None, "Creator": None})
        self.figure.savefig(pixels)
        self.table.to_csv(table, index=False, float_format=NUMBERS, lineterminator="\n")
        return [vector, pixels, table]


def drawn(found: Iterable[Exhibit | None], missing: Sequence[str]) -> list[Exhibit]:
    """Return the exhibits that could be drawn, each with the commands that make the missing points."""
    return [replace(exhibit, missing=missing) for exhibit in found if exhibit is not None]


def kind_of(device: str) -> str:
    """Return the kind of computation on a device: "emulated" or "real compute"."""
    return "emulated" if device == "emulated" else "real compute"


def distance(measured: pd.Series[float], expected: pd.Series[float], digits: int = 1) -> str:
    """Return the relative distance of measured values from expected ones as text: its median and its maximum."""
    miss = (measured / expected - 1).abs()
    return f"{miss.median():.{digits}%} in the median and {miss.max():.{digits}%} at most"


def provenance(runs: pd.DataFrame) -> str:
    """A sentence or two on where rows come from."""
    if runs.empty:
        return "From no run: computed."
    launches = runs.groupby("question").size()
    steps = runs["steps"]
    text = (
        f"From {_count(len(runs), 'run')}: {_count(len(launches), 'question')}, "
        f"{_range(launches)} {'launch' if launches.max() == 1 else 'launches'} each of {_range(steps)} measured steps"
    )
    spread = launch_spread(runs)
    if spread is not None:
        text += f"; step times of launches range over {spread[0]:.1%} of their median (at most {spread[1]:.1%})"
    machines = sorted({_machine(row) for row in records(runs)})
    commits = sorted({str(commit or "unknown") for commit in runs["env.commit"]})
    return f"{text}. Commit {', '.join(commits)}; {' and '.join(machines)}."


def launch_spread(runs: pd.DataFrame) -> tuple[float, float] | None:
    """How far the launches of a question lie apart, largest less smallest step time over the median.

    Returns:
        the median over questions and the largest; None where no question has two launches.
    """
    grouped = runs.groupby("question")["step_ms.median"]
    several = grouped.size() > 1
    if not several.any():
        return None
    widths = ((grouped.max() - grouped.min()) / grouped.median())[several]
    return float(widths.median()), float(widths.max())


def _machine(row: dict[str, Any]) -> str:
    gpus = row.get("env.gpus")
    extra = f", {', '.join(map(str, gpus))}" if isinstance(gpus, list) and gpus else ""
    return f"{row['env.processor'] or 'unknown processor'}, {_count(row['env.cores'], 'core')}{extra}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _range(values: pd.Series[int]) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low}-{high}"
