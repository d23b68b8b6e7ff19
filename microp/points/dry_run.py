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

from microp.config import config_checks, plain, predicted_seconds
from microp.job import Job
from microp.points.hydra_callbacks import Checked, Point, refuse, speaks
from microp.points.planned import Planned
from microp.points.run import equal_points
from microp.records import owner_of, run_seconds
from microp.results import unscaled
from microp.terminal import TO_RUN, DryPoint, console, show_dry_points


def show_dry_run(checked: Sequence[Checked], skipped: int, problems: list[str], resumes: bool) -> NoReturn:
    """Print a command's points, their state and predicted time, and what is invalid; exit with 0, or else 2."""
    points = [valid for _, valid, _ in checked if valid is not None]
    if speaks():
        _show(checked, points, resumes)
        if skipped:
            console.note(f"skip=true leaves {skipped} of {len(checked) + skipped} points out")
        texts = [text for point in points for text in config_checks.warnings(point.config, point.made)]
        for warning in dict.fromkeys(texts):
            console.warn(warning)
        if reason := unscaled(plain(point.config) for point in points):
            console.note(reason)
    invalid = Counter(problem for point in checked for problem in dict.fromkeys(point.problems))
    if invalid or problems:
        counted = [f"{problem} ({number} of {len(checked)} points)" for problem, number in invalid.items()]
        refuse((counted if len(checked) > 1 else list(invalid)) + problems)
    raise SystemExit(0)


def _show(checked: Sequence[Checked], points: list[Point], resumes: bool) -> None:
    """Print the table of the points, equal ones once."""
    if not checked:
        console.note("this sweeper chooses each point after those before it: which ones they are is not known yet")
        return
    runs = {point.made.run_id: point for point in reversed(points)}
    if len(runs) < len(points):
        console.note(equal_points(len(points), len(runs)))
    known = run_seconds(Path(points[0].config.output_dir) / "runs") if points else {}
    shown = []
    for overrides, point, _ in checked:
        if point is None:
            shown.append(DryPoint(overrides, "invalid"))
        elif runs[point.made.run_id] is point:
            shown.append(_dry_point(point, known, resumes))
    show_dry_points(shown)


def _dry_point(point: Point, known: Mapping[str, Sequence[float]], resumes: bool) -> DryPoint:
    job: Job = point.made
    planned = Planned(*point)
    if resumes and planned.finished():
        return DryPoint(point.overrides, "done", job.run_id)
    took = known.get(job.question_id)
    seconds = median(took) if took else predicted_seconds(point.config, job)
    owner = owner_of(planned.run)
    state = f"run by {owner}" if owner else TO_RUN
    return DryPoint(point.overrides, state, job.run_id, len(list(job.phases())), seconds)
