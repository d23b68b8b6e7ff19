"""Runs one point of a command: Hydra's task function, and what it is made of.

::

    a single run      composed ─► run
    a sweep's point   the sweep's plan ─► has a finished attempt?  ── yes ─► its numbers
                                          does another process run it? ── yes ─► wait, then ask again
                                                                       ── no ──► run

A point of a sweep is what was planned and checked before the first one started, and not what `conf/` has become since.
"""

from __future__ import annotations

from math import nan
from pathlib import Path

from omegaconf import DictConfig

from microp.config import RunError, Stop, config_checks, make_job, read_config
from microp.job import Job
from microp.points import hydra_app
from microp.points.next_commands import print_failure
from microp.points.planned import Planned, experiment_of, planned
from microp.points.run import board, run_attempt, run_locked
from microp.points.slurm_sweep import slurm_sweep
from microp.records import LockedError, SweepPlan, hold, plan_in, read_status, read_summary
from microp.settings import SlurmSettings
from microp.system import see_interrupt
from microp.terminal import console

SKIPPED = "skip=true leaves this point out"


def run_point(config: DictConfig) -> float:
    """Run one point, unless it is a finished point of a sweep; this is Hydra's task function.

    Returns:
        the objective, which a sweeper may minimise: the median step time in milliseconds. NaN if nothing was measured.

    Raises:
        RunError: the point was not measured, and the sweeper needs to know that it failed.
    """
    see_interrupt()
    if (folder := hydra_app.sweep_folder()) is not None:
        return _run_planned(config, plan_in(folder))
    asked = read_config(config)
    job: Job = hydra_app.PointsCallback.take(asked)
    try:
        attempt = run_attempt(Planned.now(hydra_app.overrides(), asked, job, experiment_of(hydra_app.config_name())))
    except LockedError as error:
        console.error(str(error))
        raise SystemExit(1) from None
    return _objective(attempt)


def _run_planned(config: DictConfig, plan: SweepPlan) -> float:
    record = plan.find(hydra_app.overrides())
    if record is None and not hydra_app.chooses_points():
        raise RunError(
            f"{plan.folder / 'points.jsonl'} lacks the point {hydra_app.overrides()}: type the sweep's command again"
        )
    if why := (record or {}).get("left_out"):
        return _failed(why)
    point = planned(record) if record else _choose(config, plan)
    if point is None:
        return _failed(SKIPPED)
    is_job = isinstance(point.config.launch, SlurmSettings)
    attempt = slurm_sweep(plan).attempt_of(point, board) if is_job else _run_here(point, plan)
    return _objective(attempt, in_sweep=is_job, fail_fast=point.config.fail_fast)


def _choose(config: DictConfig, plan: SweepPlan) -> Planned | None:
    """Check a point that the sweeper has only just chosen, and add it to the plan; None if `skip` leaves it out."""
    asked = read_config(config)
    if asked.skip:
        return None
    point = Planned.now(hydra_app.overrides(), asked, make_job(asked), experiment_of(hydra_app.config_name()))
    plan.add(point.record())
    if board.is_open and not point.finished(plan.again):
        for warning in config_checks.warnings(point.config, point.job):
            console.warn(warning)
    return point


def _run_here(point: Planned, plan: SweepPlan) -> Path:
    """Return a point's finished attempt, by whatever process, else one that this process runs."""
    if done := point.finished(plan.again):
        return done

    def tell(owner: str) -> None:
        console.note(f"{point.job.run_id} is being run by {owner}: this sweep waits, and takes its result")

    with hold(point.run, waiting=tell):
        if done := point.finished(plan.again):
            board.skip()
            return done
        return run_locked(point)


def _objective(attempt: Path, *, in_sweep: bool = False, fail_fast: bool = False) -> float:
    if not (attempt / "status.json").exists():  # this process is a rank on another host
        return nan
    status = read_status(attempt)
    if status["status"] != "finished":
        if hydra_app.speaks():
            print_failure(attempt, status, in_sweep=in_sweep)
        if fail_fast:
            raise Stop(f"fail_fast=true: {attempt.parent.name} failed")
        return _failed(f"{attempt}: {status.get('message')}")
    return float(read_summary(attempt)["step_ms"]["median"])


def _failed(reason: str) -> float:
    """Return NaN for a point without a figure; for a sweeper that chooses its points raise RunError."""
    if hydra_app.chooses_points():
        raise RunError(reason)
    return nan
