"""Names the commands to type after a run: where its files are, how to look at them, how to draw a step."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from microp.app import places
from microp.app.hydra_internals import typed_folder
from microp.settings import TrackingSettings
from microp.terminal import console, out


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


def print_failure(
    attempt: Path, status: Mapping[str, Any], config: str, overrides: Sequence[str], *, in_sweep: bool
) -> None:
    """Print why a point has failed, where more is told, and the command that runs just this point again.

    Args:
        attempt: the folder of the failed attempt.
        status: the content of its status.json.
        config: the name of the primary configuration.
        overrides: those of the point.
        in_sweep: whether it can only be run as a point of a sweep.
    """
    console.error(f"{attempt}: {status.get('message')}")
    if status.get("log"):
        console.note(f"log    {status['log']}")
    named = [*typed_folder(), *([] if config == "config" else ["-cn", config])]
    alone = ["-m"] if in_sweep else [] if config == "config" else ["hydra.mode=RUN"]
    console.note(f"again  {shlex.join(['python', '-m', 'microp.run', *named, *alone, *overrides])}")


def _program(name: str) -> str:
    """Return the command of a program in this environment: its name if PATH finds it, else its path."""
    here = Path(sys.executable).parent
    if str(here) in os.environ.get("PATH", "").split(os.pathsep):
        return name
    return os.path.relpath(here / name)
