"""Tells which W&B runs an attempt has, and where their files are.

::

    attempt-1/  status.json   uid ──► r0-<uid>  r1-<uid>  summary-<uid> ──► outputs/wandb/*run-<time>-<id>
                tracked.json  those that are complete
"""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

from microp.mirror.content import ranks_of
from microp.records import RecordError, read_config, read_env, read_json, read_status
from microp.settings import TrackingSettings

SUMMARY = "summary"
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
