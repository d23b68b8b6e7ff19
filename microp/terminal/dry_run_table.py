"""Prints what a command would run: a row per point, and how long all of it would take.

::

    a dry run of 4 points, the same in all: device=emulated ranks=4
    schedule  chunks  state    steps     time  run
    gpipe          4  done         -        -  gpipe-m4-k4-1f0e2d3c
    gpipe          8  to run      26    4.1 s  gpipe-m8-k4-9a8b7c6d
    ...
    3 to run: 78 steps, about 13 s; nothing was started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from microp.terminal.columns import Column, paragraph, show
from microp.terminal.console import out
from microp.terminal.run_table import swept_columns

TO_RUN = "to run"
ABOUT_TIME = (
    "time: of the finished launches of the same question, median; else the predicted time of the steps; "
    "- if neither is known."
)


class DryPoint(NamedTuple):
    """A point that would be run."""

    overrides: list[str]  # what was typed for it
    state: str  # `done`, `to run`, `invalid`, or which other process runs it
    run_id: str | None = None  # the name of its run; None if it is invalid
    steps: int = 0  # the number of steps to run
    seconds: float | None = None  # the time that it is predicted to take; None if nothing is known


def show_dry_points(points: Sequence[DryPoint]) -> None:
    """Print the table of the points, and below it what is to be run."""
    typed = [dict(word.partition("=")[::2] for word in point.overrides) for point in points]
    keys = dict.fromkeys(key for words in typed for key in words)
    differing = [key for key in keys if len({words.get(key) for words in typed}) > 1]
    heading = "a dry run" if len(points) == 1 else f"a dry run of {len(points)} points, the same in all"
    same = [f"{key}={typed[0][key]}" for key in keys if key not in differing and key != "dry_run"]
    paragraph(out, f"{heading}: {' '.join(same)}" if same else heading.removesuffix(", the same in all"), style="")
    if points:
        asked = swept_columns({key: [words.get(key, "-") for words in typed] for key in differing})
        results = [
            Column("state", [point.state for point in points], "left", 95),
            Column("steps", [str(point.steps or "-") for point in points], importance=80),
            Column("time", [_duration(point.seconds) for point in points], importance=90, about=ABOUT_TIME),
            Column("run", [point.run_id or "-" for point in points], "left", 20),
        ]
        show(out, [*asked, *results], "a wider terminal")
    paragraph(out, _total(points), style="")


def _total(points: Sequence[DryPoint]) -> str:
    """Return how many points are in which state, and the steps and the time of those to run."""
    states = Counter(point.state for point in points)
    counts = [f"{number} {state}" for state, number in states.items() if state != TO_RUN]
    if rest := [point for point in points if point.state == TO_RUN]:
        known = [point.seconds for point in rest if point.seconds is not None]
        time = f", about {_duration(sum(known))}" if known else ""
        and_more = f" and what {len(rest) - len(known)} of them take" if 0 < len(known) < len(rest) else ""
        counts.append(f"{len(rest)} to run: {sum(point.steps for point in rest)} steps{time}{and_more}")
    return f"{', '.join(counts) or 'nothing is known to run'}. Nothing was started."


def _duration(seconds: float | None) -> str:
    """Return a time in the unit that matters: `0.8 s`, `12 s`, `3.3 min`, `2.1 h`."""
    if seconds is None:
        return "-"
    if seconds < 99.5:
        return f"{seconds:.{int(seconds < 9.95)}f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
