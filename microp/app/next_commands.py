"""Names the commands to type after a run: where its files are, how to look at them, how to draw a step."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from microp.app import places
from microp.settings import TrackingSettings
from microp.terminal import out


def print_next_commands(output: Path, tracking: TrackingSettings, finished: Path | None) -> None:
    """Print the commands, one per line.

    Args:
        output: the folder of all results.
        tracking: where W&B's files are, if there are any.
        finished: the attempt whose step can be drawn, if there is one.
    """
    found = [("files", str(output / "runs"))]
    runs = tracking.folder(output) / "wandb"
    if tracking.mode != "disabled":
        found.append(("look", f"{_program('wandb')} leet {runs}"))
    if tracking.mode == "offline":
        found.append(("sync", f"{_program('wandb')} sync {runs}/offline-run-*"))
    if finished and places.has_analysis():
        found.append(("draw", f"{_program('python')} -m analysis.timeline {finished}"))
    out.print()
    for what, command in found:
        out.print(f"{what:5} {command}", soft_wrap=True, markup=False)


def _program(name: str) -> str:
    """Return the command of a program in this environment: its name if PATH finds it, else its path."""
    here = Path(sys.executable).parent
    if str(here) in os.environ.get("PATH", "").split(os.pathsep):
        return name
    return os.path.relpath(here / name)
