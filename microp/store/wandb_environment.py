"""The environment in which W&B is used: what it may read there, and thereby write to its files."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from microp.settings import TrackingSettings, not_writable, redact_words

AGENT = ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")  # set by `wandb agent`
_AT_HOME = {"DATA": "~/.local/share", "CACHE": "~/.cache"}  # where W&B and others keep such files


def take_agent() -> dict[str, str]:
    """Remove a `wandb agent`'s variables from the environment and return them for `env.json`; empty without an agent.

    They are removed because only one run of one attempt may be the agent's.
    """
    given = {name: value for name in AGENT if (value := os.environ.pop(name, None))}
    if "WANDB_RUN_ID" not in given:
        return {}
    where = {name: os.environ[name] for name in ("WANDB_PROJECT", "WANDB_ENTITY") if name in os.environ}
    return {name.removeprefix("WANDB_").lower(): value for name, value in (given | where).items()}


@contextmanager
def environment_for(settings: TrackingSettings, folder: Path) -> Iterator[None]:
    """Set W&B's environment meanwhile: no agent's variables, and offline no look-up of host names.

    W&B records the command of this process and every variable of Slurm, of which one is a token. So the
    command is without its secrets meanwhile, and the environment without Slurm. W&B's log is among its files: if it
    cannot be written, Python would print a traceback for every line of it.

    Args:
        settings: the mode.
        folder: W&B's files are written to `folder/wandb`.
    """
    wanted: dict[str, str | None] = {"WANDB_SILENT": "true", **dict.fromkeys(AGENT), "WANDB_MODE": settings.mode}
    wanted |= _own_folders(folder / "wandb")
    wanted |= {key: None for key in os.environ if key.startswith("SLURM_")}
    if settings.mode == "offline":
        wanted |= {"WANDB_ERROR_REPORTING": "false"}
    before, command, prints = {key: os.environ.get(key) for key in wanted}, sys.argv, logging.raiseExceptions
    logging.raiseExceptions = False
    _set(wanted)
    sys.argv = redact_words(command)
    try:
        yield
    finally:
        _set(before)
        sys.argv, logging.raiseExceptions = command, prints


def _own_folders(folder: Path) -> dict[str, str]:
    """Return where W&B puts what it cannot put into the home folder: it would print its log, and lose tables."""
    found = {}
    for kind, usual in _AT_HOME.items():
        name = f"WANDB_{kind}_DIR"
        if name not in os.environ and _lacks(os.environ.get(f"XDG_{kind}_HOME") or usual):
            found[name] = str((folder / f".{kind.lower()}").absolute())
    return found


def _lacks(at_home: str) -> bool:
    """Return whether W&B cannot write to its part of a folder at home."""
    try:
        return not_writable(Path(at_home).expanduser() / "wandb") is not None
    except RuntimeError:  # there is no home folder
        return True


def _set(variables: dict[str, str | None]) -> None:
    """Set environment variables; None removes a variable."""
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
