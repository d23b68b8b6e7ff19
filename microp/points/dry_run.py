"""Shows what a command would do, and does none of it.

::

    points ── invalid ──► why, as error lines; exit code 2
           ── valid ────► done, being run by another process, or to run: steps and predicted time

A point's time is that of its steps, predicted from an emulated device's nominal times, or from a profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from microp.config import config_checks, plain, predicted_seconds
from microp.points.hydra_app import Checked, Point
from microp.points.planned import Planned, equal_points
from microp.records import owner_of
from microp.results import unscaled
from microp.terminal import Column, console, paragraph, show_columns, swept_columns

TO_RUN = "to run"
ABOUT_STEPS = "steps: with those of warm-up, and one that measures memory."
ABOUT_TIME = "time: the predicted one of the steps, - if it is not known."


class DryPoint(NamedTuple):
    """A point that would be run."""

    overrides: list[str]  # what was typed for it
    state: str  # `done`, `to run`, `invalid`, or which other process runs it
    run_id: str | None = None  # the name of its run; None if it is invalid
    steps: int = 0  # the number of steps to run
    seconds: float | None = None  # the time that it is predicted to take; None if nothing is known


def show_dry_run(checked: Sequence[Checked], skipped: int, resumes: bool) -> None:
    """Print a command's points, their state and predicted time; `skip` leaves `skipped` others out."""
    points = [point for point in checked if isinstance(point, Point)]
    if checked:
        _show_points(list(_dry_points(checked, resumes)))
    else:
        console.note("this sweeper chooses each point after those before it: which ones they are is not known yet")
    if (runs := len({point.made.run_id for point in points})) < len(points):
        console.note(equal_points(len(points), runs))
    if skipped:
        console.note(f"skip=true leaves {skipped} of {len(checked) + skipped} points out")
    says = config_checks.warnings, config_checks.prediction_doubts
    texts = [text for say in says for point in points for text in say(point.config, point.made)]
    for warning in dict.fromkeys(texts):
        console.warn(warning)
    if reason := unscaled(plain(point.config) for point in points):
        console.note(reason)


def _dry_points(checked: Sequence[Checked], resumes: bool) -> Iterator[DryPoint]:
    """Yield the points as they are shown, equal ones once."""
    shown = set()
    for point in checked:
        if not isinstance(point, Point):
            yield DryPoint(point.overrides, "invalid")
            continue
        planned = Planned(*point)
        job = planned.job
        if job.run_id in shown:
            continue
        shown.add(job.run_id)
        if resumes and planned.finished():
            yield DryPoint(point.overrides, "done", job.run_id)
            continue
        state = f"run by {owner}" if (owner := owner_of(planned.run)) else TO_RUN
        seconds = predicted_seconds(point.config, job)
        yield DryPoint(point.overrides, state, job.run_id, len(list(job.phases())), seconds)


def _show_points(points: Sequence[DryPoint]) -> None:
    """Print the table of the points, and below it what is to be run."""
    typed = [dict(word.partition("=")[::2] for word in point.overrides) for point in points]
    keys = dict.fromkeys(key for words in typed for key in words)
    differing = [key for key in keys if len({words.get(key) for words in typed}) > 1]
    heading = "a dry run" if len(points) == 1 else f"a dry run of {len(points)} points, the same in all"
    same = [f"{key}={typed[0][key]}" for key in keys if key not in differing and key != "dry_run"]
    paragraph(f"{heading}: {' '.join(same)}" if same else heading.removesuffix(", the same in all"), style="")
    if points:
        asked = swept_columns({key: [words.get(key, "-") for words in typed] for key in differing})
        results = [
            Column("state", [point.state for point in points], "left", 95),
            Column("steps", [str(point.steps or "-") for point in points], importance=80, about=ABOUT_STEPS),
            Column("time", [_duration(point.seconds) for point in points], importance=90, about=ABOUT_TIME),
            Column("run", [point.run_id or "-" for point in points], "left", 20),
        ]
        show_columns([*asked, *results], "a wider terminal")
    paragraph(_total(points), style="")


def _total(points: Sequence[DryPoint]) -> str:
    """Return how many points are in which state, and the steps and the time of those to run."""
    states = Counter(point.state for point in points)
    counts = [f"{number} {state}" for state, number in states.items() if state != TO_RUN]
    if rest := [point for point in points if point.state == TO_RUN]:
        known = [point.seconds for point in rest if point.seconds is not None]
        time = f", about {_duration(sum(known))}" if known else ""
        and_more = f" and what {len(rest) - len(known)} of them take" if 0 < len(known) < len(rest) else ""
        starts = f", and {len(rest)} starts of their processes" if len(rest) > 1 and known else ""
        counts.append(f"{len(rest)} to run: {sum(point.steps for point in rest)} steps{time}{and_more}{starts}")
    return f"{', '.join(counts) or 'nothing is known to run'}. Nothing was started."


def _duration(seconds: float | None) -> str:
    """Return a time in the unit that matters: `0.8 s`, `12 s`, `3.3 min`, `2.1 h`."""
    if seconds is None:
        return "-"
    if seconds < 99.5:
        return f"{seconds:.{int(seconds < 9.95)}f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
