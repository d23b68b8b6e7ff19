"""Deletes attempts with the files of their W&B runs.

::

    outputs/runs/<run>/attempt-<n>  ┐
    outputs/wandb/*run-*-<id>  ...  ┴─ belongings ──► deleted

An attempt that runs is never touched, nor one of which that cannot be told.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from microp.mirror.files import wandb_files
from microp.records import RUNNING, LockedError, RecordError, attempts, hold, read_status


class Belongings(NamedTuple):
    """An attempt and what belongs to it."""

    attempt: Path  # its folder
    wandb: list[Path]  # the folders of its W&B runs

    @property
    def size(self) -> int:
        """The bytes of all files."""
        folders = (self.attempt, *self.wandb)
        return sum(path.lstat().st_size for folder in folders for path in folder.rglob("*") if not path.is_dir())


def belongings(attempt: Path) -> Belongings:
    """Return what belongs to an attempt."""
    return Belongings(attempt, wandb_files(attempt))


def is_running(attempt: Path) -> bool:
    """Return whether an attempt runs, or may run on another host."""
    try:
        return bool(read_status(attempt)["status"] == RUNNING)
    except RecordError:
        return False


def remove(doomed: Belongings) -> bool:
    """Delete an attempt, its W&B runs, and its run's folder if it was the last; return False if it runs.

    Raises:
        OSError: a file cannot be deleted.
    """
    run = doomed.attempt.parent
    try:
        with hold(run):  # no process may start the run meanwhile
            if is_running(doomed.attempt):  # it was started after it had been listed
                return False
            _delete(doomed)
            if not attempts(run):
                (run / "lock").unlink(missing_ok=True)
                with suppress(OSError):  # somebody has put something else into it
                    run.rmdir()
    except LockedError:
        return False
    return True


def _delete(doomed: Belongings) -> None:
    attempt = doomed.attempt
    for folder in doomed.wandb:
        if folder.is_dir():
            shutil.rmtree(folder)
            for path in folder.parent.iterdir():  # links to deleted folders, such as `latest-run`
                if path.is_symlink() and not path.exists():
                    path.unlink()
    hidden = attempt.with_name(f".{attempt.name}.deleted")  # half of an attempt is never read
    attempt.rename(hidden)
    shutil.rmtree(hidden)
