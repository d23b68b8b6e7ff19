"""The settings of tracking. `microp.mirror` writes runs to Weights & Biases."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from microp.settings.rules import Line, broken_rules
from microp.system import has_key, out_of_reach

MODES = ("offline", "online", "disabled")
NEEDS_KEY = "needs a W&B key: set WANDB_API_KEY or run `wandb login`, or"
_REFUSED = "/\\#?%:"  # W&B refuses these in names
_PROJECT = Line("give a name, or leave the key out for microp", longest=128, without=_REFUSED)
_ENTITY = Line("give a W&B team or user, or leave the key out", longest=128, without=_REFUSED)
_DIR = Line("give a folder, or leave the key out for the output folder")
_TAGS = Line("give words of 1 to 64 characters, e.g. [first,night]", longest=64)


@dataclass
class TrackingSettings:
    """The options of Weights & Biases. For a value that is null W&B's own environment variable counts."""

    # `offline` (files, no account, no connection), `online` or `disabled`; null for WANDB_MODE, else offline
    mode: str | None
    project: Annotated[str | None, _PROJECT]  # the W&B project; null for WANDB_PROJECT, else microp
    entity: Annotated[str | None, _ENTITY]  # the W&B team or user; null for WANDB_ENTITY, else the account's default
    # W&B's files are written to `<dir>/wandb`; null for WANDB_DIR, else the output folder
    dir: Annotated[str | None, _DIR]
    tags: Annotated[list[str], _TAGS]  # words by which W&B can filter the runs
    follow: bool | None  # log the rows while the run runs, by a process of its own; null for only if the mode is online
    system_metrics: bool  # W&B's own measurements of the host (processor, memory, network) while it follows a run

    def resolved(self) -> TrackingSettings:
        """Return the settings with a value for each key that was left to the environment."""
        mode = self.mode or os.environ.get("WANDB_MODE") or "offline"
        return replace(
            self,
            mode=mode,
            project=(os.environ.get("WANDB_PROJECT") or "microp") if self.project is None else self.project,
            entity=self.entity or os.environ.get("WANDB_ENTITY") or None,
            dir=self.dir or os.environ.get("WANDB_DIR") or None,
            follow=mode == "online" if self.follow is None else self.follow,
        )

    def reachable(self) -> TrackingSettings:
        """Return the settings with which nothing waits for a server: offline where it cannot be reached."""
        return replace(self, mode="offline") if self.mode == "online" and out_of_reach() else self

    def folder(self, output: Path) -> Path:
        """Return the folder in which `wandb/` is, for runs below `output`."""
        return Path(self.dir) if self.dir else output

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        if self.mode not in MODES:
            return [
                f"tracking.mode={self.mode} is not one of {', '.join(MODES)}: "
                f"use tracking=offline, or set WANDB_MODE to one of them"
            ]
        if self.mode == "online" and not has_key():
            return [f"tracking=online {NEEDS_KEY} use tracking=offline and `wandb sync` later"]
        return [] if self.mode == "disabled" else broken_rules(self, "tracking.")

    def folder_problem(self, output: Path) -> str | None:
        """Return why W&B's files cannot be written, for runs below `output`: W&B would silently write elsewhere."""
        folder = self.folder(output) / "wandb"
        if self.mode == "disabled" or not (reason := not_writable(folder)):
            return None
        return f"W&B's files cannot be written to {folder} ({reason}): set tracking.dir or WANDB_DIR to another folder"


def not_writable(folder: Path) -> str | None:
    """Return why files cannot be written to a folder, which need not exist; None if they can. Nothing is left there."""
    if folder.parts[:1] and folder.parts[0].startswith("~") and not Path(folder.parts[0]).exists():
        return "only a shell knows what ~ stands for, write the whole path"
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.is_symlink() or path.exists())
        Path(tempfile.mkdtemp(dir=there)).rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return None
