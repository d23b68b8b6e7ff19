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

from microp.config import config_checks, predicted_seconds
from microp.job import Job
from microp.records import owner_of, run_seconds
from microp.sweep.hydra_callbacks import Checked, Point, refuse, speaks
from microp.sweep.planned import Planned
from microp.sweep.points import equal_points
from microp.terminal import TO_RUN, DryPoint, console, show_dry_points


def show_dry_run(checked: Sequence[Checked], skipped: int, problems: list[str], resumes: bool) -> NoReturn:
    """Print a command's points, their state and predicted time, and what is invalid; exit with 0, or else 2."""
    points = [each.point for each in checked if each.point is not None]
    found = Counter(problem for each in checked for problem in dict.fromkeys(each.problems))
    counts = {problem: f" ({number} of {len(checked)} points)" for problem, number in found.items()}
    if speaks():
        _show(checked, points, resumes)
        if skipped:
            console.note(f"skip=true leaves {skipped} of {len(checked) + skipped} points out")
        texts = [text for each in points for text in config_checks.warnings(each.config, each.made)]
        for warning in dict.fromkeys(texts):
            console.warn(warning)
    if found or problems:
        refuse([f"{problem}{counts[problem] if len(checked) > 1 else ''}" for problem in found] + problems)
    raise SystemExit(0)


def _show(checked: Sequence[Checked], points: list[Point], resumes: bool) -> None:
    """Print the table of the points, equal ones once."""
    runs = {point.made.run_id: point for point in reversed(points)}
    if len(runs) < len(points):
        console.note(equal_points(len(points), len(runs)))
    if not checked:
        console.note("this sweeper chooses each point after those before it: which ones they are is not known yet")
        return
    known = run_seconds(Path(points[0].config.output_dir) / "runs") if points else {}
    shown = []
    for each in checked:
        if each.point is None:
            shown.append(DryPoint(each.overrides, "invalid"))
        elif runs[each.point.made.run_id] is each.point:
            shown.append(_dry_point(each.point, known, resumes))
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
