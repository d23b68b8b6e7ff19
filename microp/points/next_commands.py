"""Names the commands to type after a run: where its files are, how to look at them, how to draw a step."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from microp.config import Config, typed_folder, unused
from microp.points.hydra_app import config_name, overrides
from microp.records import snapshots
from microp.results import PointRow
from microp.settings import TrackingSettings
from microp.system import places, sweep_names
from microp.terminal import console, out


def print_next_commands(
    output: Path, tracking: TrackingSettings, rows: Sequence[PointRow], sweep: str | None, plan: Path = Path()
) -> None:
    """Print the commands, one per line, for the rows of what has finished.

    `sweep` is the experiment of several, `plan` its folder.

    Drawn is the run with the smallest bubble of several ranks and microbatches, an undisturbed one if there is one.
    """
    commands = [("files", str(output / "runs"))]
    if rows and places.CHECKOUT is not None:  # a wheel has no `analysis`
        elsewhere = [] if Path.cwd() == places.CHECKOUT else ["env", f"PYTHONPATH={places.CHECKOUT}"]
        python, drawn = [*elsewhere, _program("python"), "-m"], min(rows, key=_dullness).folder
        if sweep is not None:
            is_stored = sweep in sweep_names() and (places.CHECKOUT / "analysis" / f"{sweep}.py").is_file()
            place = str(output if is_stored else plan)
            asked = [f"analysis.{sweep if is_stored else 'sweep'}", *([] if place == "outputs" else [place])]
            commands.append(("answer", shlex.join([*python, *asked])))
        commands.append(("draw", shlex.join([*python, "analysis.timeline", str(drawn)])))
    runs = tracking.folder(output) / "wandb"
    if tracking.mode != "disabled":
        commands.append(("look", shlex.join([_program("wandb"), "leet", str(runs)])))
    if tracking.mode == "offline":
        commands.append(("sync", f"{shlex.join([_program('wandb'), 'sync', str(runs)])}/offline-run-*"))
    out.print()
    for what, command in commands:
        out.print(f"{what:6} {command}", soft_wrap=True, markup=False)


def _dullness(row: PointRow) -> tuple[bool, bool, float]:
    is_pipeline = min(row.summary["ranks"], row.summary["chunks"]) > 1
    return not is_pipeline, bool(row.disturbed), row.summary["bubble"]["measured"]


def used_words(config: Config, left_out: Sequence[str]) -> list[str]:
    """Return the running point's overrides that another configuration uses too, after its `-cd`.

    Keys and groups that match one of the regular expressions `left_out` are not repeated.
    """
    not_used = [*left_out, *map(re.escape, unused(config))]
    words = {word: word.lstrip("+~").partition("=")[0] for word in overrides()}
    used = [word for word, key in words.items() if not any(re.match(rf"{pattern}(\.|$)", key) for pattern in not_used)]
    return [*typed_folder(), *used]


def print_failure(attempt: Path, status: Mapping[str, Any], *, in_sweep: bool) -> None:
    """Print why the running point has failed, where more is told, and the command that runs just this point again."""
    config = config_name()
    console.error(f"{attempt}: {status.get('message')}")
    if (log := status.get("log")) and not (Path(log).is_file() and Path(log).stat().st_size == 0):
        console.line(f"log    {log}")
    named = [*typed_folder(), *([] if config == "config" else ["-cn", config])]
    alone = ["-m"] if in_sweep else [] if config == "config" else ["hydra.mode=RUN"]
    console.line(f"again  {shlex.join(['python', '-m', 'microp.run', *named, *alone, *overrides()])}")
    print_resume(attempt)


def print_resume(attempt: Path) -> None:
    """Print how the training goes on from the newest snapshot of an attempt that has ended early, if it has one."""
    if saved := snapshots.snapshots_of(attempt):
        console.line(f"resume snapshot.resume=true goes on from {saved[-1].name}")


def _program(name: str) -> str:
    """Return the command of a program in this environment: its name if PATH finds it, else its path."""
    here = Path(sys.executable).parent
    if str(here) in os.environ.get("PATH", "").split(os.pathsep):
        return name
    return os.path.relpath(here / name)
