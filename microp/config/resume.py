"""Finds the snapshot from which a run goes on, and checks it before any process starts.

::

    snapshot.resume=true   the newest snapshot of this run   ┐
    snapshot.path=FOLDER   that one, also of another run     ┴─► Job.resumed, or what is wrong with it
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from microp.config.errors import ConfigError
from microp.config.schema import Config
from microp.job import Job, Snapshot
from microp.records import RecordError, changed_since, read_env, snapshots


def find_resumed(config: Config, job: Job) -> Snapshot | None:
    """Return the snapshot from which a job goes on; None if it starts at its beginning.

    Raises:
        ConfigError: the snapshot is not there, is damaged, or is not of this training.
    """
    asked = config.snapshot
    key = "" if asked.path is None else "snapshot.path: "
    try:
        if asked.path is not None:
            found: Snapshot | None = snapshots.find_snapshot(Path(asked.path).expanduser())
        else:
            found = snapshots.unfinished_snapshot(_run(config, job), job.training_steps) if asked.resume else None
    except RecordError as error:
        raise ConfigError([f"{key}{error}"]) from error
    if found and (problem := snapshots.snapshot_problem(found, job)):
        raise ConfigError([f"{key}{problem}"])
    return found


def nothing_to_resume(config: Config, job: Job) -> list[str]:
    """Return that `snapshot.resume=true` finds nothing, for a run alone; a sweep's point starts at its beginning."""
    if not config.snapshot.resume or job.resumed:
        return []
    return [
        f"snapshot.resume=true, but {_run(config, job)} has no snapshot of an attempt that did not finish: "
        "leave it out to start at the beginning, or give snapshot.path"
    ]


def about_resumed(jobs: list[Job]) -> list[str]:
    """Return from which snapshots jobs go on, one sentence each."""
    resumed = [(job, job.resumed) for job in jobs if job.resumed]
    goes_on = [
        f"{job.run_id} goes on after step {snapshot.step} of {job.training_steps}, from {snapshot.folder}"
        for job, snapshot in resumed
    ]
    return goes_on + changed_since(
        (getattr(job.data, "path", None), _env_of(snapshot), job.data.contents()) for job, snapshot in resumed
    )


def _env_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the environment of the attempt that saved a snapshot; nothing if the snapshot was taken out of it."""
    try:
        return read_env(Path(snapshot.folder).parents[1])
    except (RecordError, IndexError):
        return {}


def _run(config: Config, job: Job) -> Path:
    return Path(config.output_dir) / "runs" / job.run_id
