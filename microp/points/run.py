"""Runs one configuration: takes its lock, makes the folder of its attempt, and starts its ranks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from microp.points import hydra_app
from microp.points.planned import Planned
from microp.records import hold
from microp.system import is_joined
from microp.terminal import Board

board = Board()  # global, because Hydra creates the callback that shares it with `run_point`


def run_attempt(point: Planned) -> Path:
    """Run one point and return the attempt's folder, where a failure is recorded; LockedError: it runs elsewhere."""
    records = hydra_app.speaks()  # of the ranks that torchrun started, rank 0 makes the folder
    with hold(point.run) if records else nullcontext():
        return run_locked(point)


def run_locked(point: Planned) -> Path:
    """The same, where this process holds the lock already."""
    from microp import worker  # torch takes a second, too slow for --help and TAB
    from microp.points.attempt import Attempt
    from microp.points.joined import run_as_rank

    if is_joined():
        return run_as_rank(point)
    job, start = point.job, worker.run_threads if point.job.backend == "threads" else worker.launch_ranks
    with Attempt(point) as attempt, board.point(job.run_id, len(list(job.phases())), attempt / "steps.rank0.jsonl"):
        start(job, attempt)
    return attempt
