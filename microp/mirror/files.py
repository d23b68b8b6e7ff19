"""Tells which W&B runs an attempt has and where their files are, and deletes an attempt with them.

::

    attempt-1/  status.json   uid ──► r0-<run>-<uid>  summary-<run>-<uid> ──► outputs/wandb/*run-<time>-<id>
                tracked.json  those that are complete

An attempt that runs is never deleted, nor one of which that cannot be told.
"""

from __future__ import annotations

import glob
import os
import shutil
from contextlib import suppress
from pathlib import Path

from microp import records
from microp.settings import TrackingSettings

SUMMARY = "summary"
_ABOUT = 40  # characters of a run's name in the id of a W&B run, which may have 64
_AGENT = ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")  # set by `wandb agent`


def take_agent() -> dict[str, str]:
    """Remove a `wandb agent`'s variables from the environment and return them for `env.json`; empty without an agent.

    They are removed because only one run of one attempt may be the agent's.
    """
    given = {name: value for name in _AGENT if (value := os.environ.pop(name, None))}
    if "WANDB_RUN_ID" not in given:
        return {}
    where = {name: os.environ[name] for name in ("WANDB_PROJECT", "WANDB_ENTITY") if name in os.environ}
    return {name.removeprefix("WANDB_").lower(): value for name, value in (given | where).items()}


def completed(attempt: Path) -> dict[str, str]:
    """Return the W&B runs that are complete, name -> id; none if `tracked.json` is damaged: they are made again."""
    try:
        done = records.read_json(attempt / "tracked.json")
    except (OSError, ValueError):
        return {}
    return done if isinstance(done, dict) else {}


def files_of(uid: str, folder: Path) -> list[Path]:
    """Return the folders of a W&B run below `folder/wandb`."""
    return sorted((folder / "wandb").glob(f"*run-*-{glob.escape(uid)}"))


def wandb_names(attempt: Path) -> list[str]:
    """Return the names of an attempt's W&B runs: `rank0`, ... for the ranks that have written rows, and `summary`."""
    return [*(f"rank{records.rank_of(path)}" for path in records.row_files(attempt, "steps")), SUMMARY]


def wandb_uid(attempt: Path, name: str) -> str:
    """Return the id of an attempt's W&B run, which its folder has too: `wandb leet` shows the start of an id.

    The role comes first, then the schedule and its numbers, as in `r0-1f1b-m8-k2-<uid>`.
    """
    agent = records.read_env(attempt).get("wandb_agent", {})
    if agent and name == SUMMARY:
        return str(agent["run_id"])
    about = attempt.parent.name.rpartition("-")[0][:_ABOUT]
    return "-".join(filter(None, (name.replace("rank", "r"), about, records.read_status(attempt)["uid"])))


def _wandb_folders(attempt: Path) -> set[Path]:
    """Return the folders of an attempt's W&B runs; none if its records do not tell their ids."""
    try:
        settings = TrackingSettings(**records.read_config(attempt)["tracking"])
        ids = [records.read_status(attempt)["uid"], *completed(attempt).values(), wandb_uid(attempt, SUMMARY)]
        folder = settings.folder(attempt.absolute().parents[2])
        return {path for uid in ids for path in files_of(uid, folder)}  # an id may be the end of another
    except (records.RecordError, KeyError, TypeError):
        return set()


def is_running(attempt: Path) -> bool:
    """Return whether an attempt runs, or may run on another host."""
    try:
        return bool(records.read_status(attempt)["status"] == records.RUNNING)
    except records.RecordError:
        return False


def remove(attempt: Path) -> bool:
    """Delete an attempt, its W&B runs, and its run's folder if it was the last; return False if the run runs.

    Raises:
        OSError: a file cannot be deleted.
    """
    run = attempt.parent
    try:
        with records.hold(run):  # no process may start the run meanwhile
            if any(map(is_running, records.attempts(run))):
                return False
            for folder in _wandb_folders(attempt):
                shutil.rmtree(folder)
                for path in folder.parent.iterdir():  # links to deleted folders, such as `latest-run`
                    if path.is_symlink() and not path.exists():
                        path.unlink()
            hidden = attempt.with_name(f".{attempt.name}.deleted")  # half of an attempt is never read
            attempt.rename(hidden)
            shutil.rmtree(hidden)
            if not records.attempts(run):
                (run / "lock").unlink(missing_ok=True)
                with suppress(OSError):  # somebody has put something else into it
                    run.rmdir()
    except records.LockedError:
        return False
    return True
