"""The environment in which W&B is used: what it may read there, and thereby write to its files."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from microp.settings import TrackingSettings, redact_words

AGENT = ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")  # set by `wandb agent`


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
def environment_for(settings: TrackingSettings) -> Iterator[None]:
    """Set W&B's environment meanwhile: no agent's variables, and offline no look-up of host names.

    W&B records the command of this process and every variable of Slurm, of which one is a token. So the
    command is without its secrets meanwhile, and the environment without Slurm. W&B's log is among its files: if it
    cannot be written, Python would print a traceback for every line of it.
    """
    wanted: dict[str, str | None] = {"WANDB_SILENT": "true", **dict.fromkeys(AGENT), "WANDB_MODE": settings.mode}
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


def _set(variables: dict[str, str | None]) -> None:
    """Set environment variables; None removes a variable."""
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
