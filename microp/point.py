"""One point of a sweep, from its configuration to its summary on disk.

::

    plan ─► attempt folder ─► ranks ─► summary.json ─► W&B
            config.yaml       their     status.json     tracked.json
            env.json          files
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
import uuid
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from microp import launch, terminal, tracking
from microp.app import places
from microp.config import Config, make_plan, to_yaml
from microp.plan import Plan
from microp.records import new_attempt, write_json
from microp.summary import summarise


def run_point(config: Config, board: terminal.Board, experiment: str | None) -> None:
    """Run one valid configuration and leave its attempt folder behind, finished or failed.

    A failure of a rank is written down and does not raise: the other points go on.

    Args:
        config: valid.
        board: shows how far it is.
        experiment: the name of the stored sweep that the point belongs to, if any.

    Raises:
        KeyboardInterrupt: Ctrl-C, after it has been written down.
    """
    plan = make_plan(config)
    if launch.joins():
        _run_joined(config, plan, experiment)
        return
    attempt = _open_attempt(config, plan, experiment)
    status = _Status(attempt)
    try:
        with board.point(plan.run_id, len(list(plan.phases())), attempt / "steps.rank0.jsonl"):
            if plan.backend == "threads":
                launch.run_threads(plan, attempt)
            else:
                launch.run_elastic(plan, attempt, config.launch.shutdown_s)
        state, message = "finished", None
    except launch.RankError as error:
        state, message = "failed", str(error)
    except KeyboardInterrupt:
        write_json(attempt / "summary.json", summarise(plan, attempt, "interrupted"))
        status.write("interrupted")
        raise
    _close_attempt(config, plan, attempt, status, state, message)


def _run_joined(config: Config, plan: Plan, experiment: str | None) -> None:
    comms = launch.dial_in_joined(plan)
    own = str(_open_attempt(config, plan, experiment)) if comms.number == 0 else ""
    attempt = Path(comms.gather_all(own)[0])
    attempt.mkdir(parents=True, exist_ok=True)  # on another host
    status = _Status(attempt) if comms.number == 0 else None
    try:
        launch.run_joined(plan, comms, attempt)
    except launch.RankError as error:
        if status is not None:
            _close_attempt(config, plan, attempt, status, "failed", str(error))
        raise
    comms.close()
    if status is not None:
        _close_attempt(config, plan, attempt, status, "finished", None)


def _open_attempt(config: Config, plan: Plan, experiment: str | None) -> Path:
    attempt = new_attempt(Path(config.output_dir) / "runs", plan.run_id)
    (attempt / "config.yaml").write_text(to_yaml(config))
    where = {**_environment(), "experiment": experiment, "wandb_agent": tracking.take_agent()}
    write_json(attempt / "env.json", where)
    return attempt


def _close_attempt(config: Config, plan: Plan, attempt: Path, status: _Status, state: str, message: str | None) -> None:
    write_json(attempt / "summary.json", summarise(plan, attempt, state))
    status.write(state, message)
    try:
        tracking.mirror(attempt, config.tracking, Path(config.output_dir))
    except Exception as error:  # the run is whole without W&B, whatever W&B raises
        terminal.warn(
            f"W&B failed ({error}); the run is finished and recorded. To mirror it later: "
            f"python -m microp.tracking {config.output_dir}"
        )


class _Status:
    """`status.json`: how an attempt stands, from when to when."""

    def __init__(self, attempt: Path) -> None:
        self._path = attempt / "status.json"
        self._row: dict[str, Any] = {"uid": uuid.uuid4().hex[:12], "pid": os.getpid(), "started": time.time()}
        self.write("running")

    def write(self, state: str, message: str | None = None) -> None:
        if state != "running":
            self._row |= {"ended": time.time()}
        write_json(self._path, {"status": state, "message": message, **self._row})


@cache
def _environment() -> dict[str, Any]:
    """What the figures depend on beside the configuration."""
    packages = ("torch", "hydra-core", "wandb", "numpy")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": gpus,
    }


def _commit() -> str | None:
    """The commit of this checkout, with a + where files differ from it; None outside git."""
    if places.CHECKOUT is None:
        return None  # installed: a repository around it is somebody else's
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """The processor's model, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
