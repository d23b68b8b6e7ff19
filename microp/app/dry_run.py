"""Shows what a command would do, and does none of it.

::

    points ── invalid ──► why, as error lines; exit code 2
           ── valid ────► done, being run by another process, or to run: steps and predicted time

A point's time is what finished launches of its question took, from the start of the ranks to the last record. Where
there is none, the time of its steps is predicted: from an emulated device's nominal times, or from a profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NoReturn

from microp.app import config_checks
from microp.app.composing import Composed, refusal
from microp.app.errors import REFUSED
from microp.app.hydra_callbacks import Point, PointsCallback, refuse, speaks
from microp.app.knobs import NOTHING_LEFT, Knobs
from microp.app.planned import Planned
from microp.app.points import equal_points
from microp.app.prediction import predicted_seconds
from microp.job import Job
from microp.store import owner_of, run_seconds
from microp.terminal import TO_RUN, DryPoint, console, show_dry_points

CHOOSES = "this sweeper chooses each point after those before it: which ones they are is not known yet"


def show_dry_run(callback: PointsCallback, composed: Sequence[Composed], resumes: bool) -> NoReturn:
    """Print the points of a command with their state and their predicted time, then what is invalid, and exit.

    Args:
        callback: reads and checks a point.
        composed: the points, also those that cannot be composed.
        resumes: whether the command leaves out what is finished.

    Raises:
        SystemExit: 0 if everything is valid, else 2.
    """
    knobs = Knobs()
    checked = [(each, *_check(callback, each, knobs)) for each in composed]
    checked = [(each, point, problems) for each, point, problems in checked if point is not None or problems]
    wanted = [each for each, _, _ in checked]  # `skip` leaves out the others
    if composed and not wanted:
        refuse([NOTHING_LEFT])
    points = [point for _, point, _ in checked if point is not None]
    found = Counter(problem for _, _, problems in checked for problem in dict.fromkeys(problems))
    problems = [f"{problem} ({number} of {len(wanted)} points)" for problem, number in found.items()]
    problems = (problems if len(wanted) > 1 else list(found)) + knobs.problems + callback.problems_together(points)
    if speaks():
        _show(wanted, [point for _, point, _ in checked], resumes)
        if skipped := len(composed) - len(wanted):
            console.note(f"skip=true leaves {skipped} of {len(composed)} points out")
        for note in knobs.notes:
            console.note(note)
        for warning in dict.fromkeys(
            text for each in points for text in config_checks.warnings(each.config, each.made)
        ):
            console.warn(warning)
    if problems:
        refuse(problems)
    raise SystemExit(0)


def _check(callback: PointsCallback, composed: Composed, knobs: Knobs) -> tuple[Point | None, list[str]]:
    """Return a checked point, or None and what is wrong with it; None and nothing if `skip` leaves it out."""
    try:
        return callback.read(composed, knobs), []
    except REFUSED as error:
        return None, refusal(error)


def _show(composed: Sequence[Composed], points: Sequence[Point | None], resumes: bool) -> None:
    """Print the table of the points, equal ones once."""
    valid = [point for point in points if point is not None]
    runs = {point.made.run_id: point for point in reversed(valid)}
    if len(runs) < len(valid):
        console.note(equal_points(valid, len(runs)))
    if not composed:
        console.note(CHOOSES)
        return
    known = run_seconds(Path(valid[0].config.output_dir) / "runs") if valid else {}
    shown = []
    for each, point in zip(composed, points, strict=True):
        if point is None:
            shown.append(DryPoint(each.overrides, "invalid"))
        elif runs[point.made.run_id] is point:
            shown.append(_dry_point(point, known, resumes))
    show_dry_points(shown)


def _dry_point(point: Point, known: Mapping[str, Sequence[float]], resumes: bool) -> DryPoint:
    job: Job = point.made
    run = Path(point.config.output_dir) / "runs" / job.run_id
    if resumes and Planned(*point).finished():
        return DryPoint(point.overrides, "done", job.run_id)
    took = known.get(job.question_id)
    seconds = median(took) if took else predicted_seconds(point.config, job)
    owner = owner_of(run)
    state = f"run by {owner}" if owner else TO_RUN
    return DryPoint(point.overrides, state, job.run_id, len(list(job.phases())), seconds)
