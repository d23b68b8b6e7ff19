"""Tells which W&B runs an attempt has, and where their files are.

::

    attempt-1/  status.json   uid ──► r0-<uid>  r1-<uid>  summary-<uid> ──► outputs/wandb/*run-<time>-<id>
                tracked.json  those that are complete
"""

from __future__ import annotations

import glob
import shutil
from pathlib import Path

from microp.settings import TrackingSettings
from microp.store.records import RecordError, read_config, read_env, read_json, read_status
from microp.store.wandb_content import ranks_of

SUMMARY = "summary"


def discard_unfinished(attempt: Path, folder: Path) -> None:
    """Remove the files of an attempt's W&B runs that are not complete, of a process that was ended.

    `wandb leet` would show them as running for ever; `mirror` makes them again from the attempt's files.
    """
    done = completed(attempt)
    for name in wandb_names(attempt):
        if name not in done:
            discard(wandb_uid(attempt, name), folder)


def completed(attempt: Path) -> dict[str, str]:
    """Return the W&B runs that are complete, name -> id; none if `tracked.json` is damaged: they are made again."""
    try:
        done = read_json(attempt / "tracked.json")
    except (OSError, ValueError):
        return {}
    return done if isinstance(done, dict) else {}


def discard(uid: str, folder: Path) -> None:
    """Remove the files of a W&B run below `folder/wandb`."""
    for files in _files_of(uid, folder):
        shutil.rmtree(files)


def _files_of(uid: str, folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob(f"*run-*-{glob.escape(uid)}"))


def wandb_files(attempt: Path) -> list[Path]:
    """Return the folders of an attempt's W&B runs on this disk; none if its records do not tell its ids."""
    try:
        settings = TrackingSettings.recorded(read_config(attempt)["tracking"])
        names = [*wandb_names(attempt), *completed(attempt)]
        folder = settings.folder(attempt.absolute().parents[2])
        return [path for name in dict.fromkeys(names) for path in _files_of(wandb_uid(attempt, name), folder)]
    except (RecordError, KeyError, TypeError):
        return []


def wandb_names(attempt: Path) -> list[str]:
    """Return the names of an attempt's W&B runs: `rank0`, ... for the ranks that have written rows, and `summary`."""
    return [*(f"rank{rank}" for rank in ranks_of(attempt)), SUMMARY]


def wandb_uid(attempt: Path, name: str) -> str:
    """Return the id of an attempt's W&B run. Its role comes first: `wandb leet` shows the start of an id."""
    agent = read_env(attempt).get("wandb_agent", {})
    if agent and name == SUMMARY:
        return str(agent["run_id"])
    return f"{name.replace('rank', 'r')}-{read_status(attempt)['uid']}"
