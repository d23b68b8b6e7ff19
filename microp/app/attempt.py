"""Executes a run once and writes the folder of that attempt.

::

    Attempt opens    config.yaml  env.json  schedule.txt  status.json: running
      the ranks      steps, spans, errors
    Attempt closes   summary.json  status.json: finished, failed, diverged or interrupted  ─► W&B, tracked.json
"""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from microp.app import places
from microp.app.config import to_yaml
from microp.app.schema import Config
from microp.job import Job
from microp.settings import redact_words
from microp.store import (
    DIVERGED,
    RUNNING,
    Follower,
    checksums,
    load_average,
    mirror,
    new_attempt,
    read_errors,
    snapshots,
    summarise,
    take_agent,
    this_process,
    write_json,
    write_schedule,
)
from microp.terminal import console
from microp.worker import RankError, connect_joined, run_joined

log = logging.getLogger(__name__)


class Attempt:
    """A context in which the ranks of one job run; the failure of a rank is recorded and not raised.

    Args:
        config: the valid configuration.
        job: the job of that configuration.
        experiment: the name of the stored sweep that the point belongs to, if any.
        overrides: what was typed for the point.

    Attributes:
        folder: the attempt's folder, which gets all files.

    Raises:
        KeyboardInterrupt: Ctrl-C, after it has been recorded.
    """

    def __init__(self, config: Config, job: Job, experiment: str | None, overrides: Sequence[str] = ()) -> None:
        config = replace(config, tracking=config.tracking.reachable())  # what is recorded is what was done
        self._config, self._job = config, job
        self.folder = new_attempt(Path(config.output_dir) / "runs", job.run_id)
        self._status: dict[str, Any] = {"uid": uuid.uuid4().hex[:12], **this_process(), "started": time.time()}
        if job.resumed:
            self._status["resumed"] = snapshots.about(job.resumed, self.folder)
        self._write_status(RUNNING)  # first, so that an attempt without a status is damaged
        (self.folder / "config.yaml").write_text(to_yaml(config))
        asked = {"experiment": experiment, "overrides": redact_words(overrides), "wandb_agent": take_agent()}
        self._env = {**_environment(), **asked}
        self._write_load("start")
        write_schedule(self.folder, job.schedule)
        log.debug("%d ranks start, and write to %s", config.ranks * config.replicas, self.folder)
        follows = config.tracking.follow and config.tracking.mode != "disabled"
        self._follower = Follower(self.folder) if follows else None

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None:
            self.close("finished")
        elif isinstance(error, RankError):
            self.fail(error)
            return True
        elif isinstance(error, KeyboardInterrupt):
            snapshots.remove_drafts(self.folder)
            write_json(self.folder / "summary.json", summarise(self._job, self.folder, "interrupted"))
            self._write_status("interrupted")  # a follower then ends by itself
        elif self._follower is not None:
            self._follower.stop()
        return False

    def fail(self, error: RankError) -> None:
        """Close the attempt as failed, or as diverged with the message of the rank whose loss was not finite."""
        diverged = [str(row["message"]) for row in read_errors(self.folder) if row.get("diverged")]
        self.close(DIVERGED if diverged else "failed", diverged[0] if diverged else str(error))

    def close(self, state: str, message: str | None = None) -> None:
        """Write the load average, the summary and the status, and mirror the attempt to W&B."""
        self._write_load("end")
        snapshots.remove_drafts(self.folder)
        write_json(self.folder / "summary.json", summarise(self._job, self.folder, state))
        self._write_status(state, message)
        took = self._status["ended"] - self._status["started"]
        log.debug("the ranks ended after %.1f s (%s); summary.json and status.json are written", took, state)
        settings = self._config.tracking
        try:
            if self._follower is not None:
                self._follower.wait()
            else:
                mirror(self.folder, settings, settings.folder(Path(self._config.output_dir)))
            log.debug("W&B: %s", "not used" if settings.mode == "disabled" else f"the run is mirrored, {settings.mode}")
        except Exception as error:  # W&B may raise anything, and the run is complete without it
            console.warn(
                f"W&B failed ({error}); the run is finished and recorded. To mirror it later: "
                f"python -m microp.tracking {self._config.output_dir}"
            )

    def _write_load(self, moment: str) -> None:
        """Add the load average before (`start`) or after (`end`) the ranks' run to env.json."""
        self._env["load"] = {**self._env.get("load", {}), moment: load_average()}
        write_json(self.folder / "env.json", self._env)

    def _write_status(self, state: str, message: str | None = None) -> None:
        if state != RUNNING:
            self._status |= {"ended": time.time(), "files": checksums(self.folder)}
        write_json(self.folder / "status.json", {"status": state, "message": message, **self._status})


def run_as_rank(config: Config, job: Job, experiment: str | None, overrides: Sequence[str]) -> Path:
    """Run one rank of a torchrun launch and return the attempt's folder; rank 0 records the attempt.

    Raises:
        RankError: a rank failed.
    """
    comms = connect_joined(job)
    attempt = Attempt(config, job, experiment, overrides) if comms.world_rank == 0 else None
    folder = Path(comms.gather_all(str(attempt.folder) if attempt else "")[0])
    folder.mkdir(parents=True, exist_ok=True)  # another host does not have it yet
    try:
        run_joined(job, comms, folder)
    except RankError as error:
        if attempt is not None:
            attempt.fail(error)
        raise
    comms.close()
    if attempt is not None:
        attempt.close("finished")
    return folder


@cache
def _environment() -> dict[str, Any]:
    """Return the facts that figures depend on in addition to the configuration: command, commit, versions, machine."""
    packages = ("torch", "hydra-core", "wandb", "numpy")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": redact_words(sys.argv),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpus": gpus,
    }


def _commit() -> str | None:
    """Return the commit of this checkout, with a + if files differ from it; None outside git."""
    if places.CHECKOUT is None:
        return None  # microp is installed: a repository around it is not microp's
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """Return the processor's model, or an empty string if the system does not give it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
