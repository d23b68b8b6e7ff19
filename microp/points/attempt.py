"""Executes a run once and writes the folder of that attempt.

::

    Attempt opens    config.yaml  env.json  schedule.txt  predicted.json  status.json: running
      the ranks      steps, spans, errors
    Attempt closes   summary.json  status.json: finished, failed, diverged or interrupted  ─► W&B, tracked.json

A failure of the ranks costs this attempt only, and W&B costs none. Any other error ends the command, because the next
run would meet it too (no room on the disk, too few descriptors, a bug)::

    offline   attempt 1 ─► mirrored ─► attempt 2 ─► mirrored
    online    attempt 1 ─────────────────────► waits ─► attempt 2
              └─ `microp.tracking --follow` ───┘        at most END_S: the rest is done later, by the same command
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from microp import records
from microp.config import Config, predict, to_yaml
from microp.job import Job
from microp.mirror import mirror, take_agent
from microp.points.hydra_app import runs_beside_others
from microp.points.next_commands import print_resume
from microp.points.planned import Planned
from microp.settings import changed_data
from microp.system import places, processor, redact_words, server
from microp.terminal import console
from microp.worker import RankError

END_S = 60  # that W&B gets after a run that was followed, in seconds
LOG = "tracking.log"  # in the attempt's folder: what the process says that follows it
log = logging.getLogger(__name__)


class Attempt:
    """A context in which the ranks of one job run; a failure of the ranks is recorded and not raised.

    Its `folder` gets all files: one that has been made, else the next one of the run. Any other error is recorded, if
    there is room, and raised: the next run would meet it too.
    """

    def __init__(self, point: Planned, folder: Path | None = None) -> None:
        config, self._point, self._job = point.config, point, point.job
        # What is recorded is what was done.
        self._config = replace(config, tracking=config.tracking.reachable(), device=point.job.device)
        self._follower: subprocess.Popen[bytes] | None = None
        self.folder = folder or records.new_attempt(point.run.parent, point.job.run_id, point.known + 1)

    def __enter__(self) -> Path:
        """Write what is known before the ranks start, and start the process that follows them."""
        config, job = self._config, self._job
        status = {"status": records.RUNNING, "message": None, "uid": uuid.uuid4().hex[:12], **records.this_process()}
        status["started"] = time.time()
        if "SLURM_JOB_ID" in os.environ:
            status["slurm_job"] = os.environ["SLURM_JOB_ID"]
        if job.resumed:
            status["resumed"] = records.snapshots.about(job.resumed, self.folder)
        records.write_json(self.folder / "status.json", status)  # first, so that an attempt without a status is damaged
        records.write_text(self.folder / "config.yaml", to_yaml(config))
        self._env: dict[str, Any] = {
            **_environment(),
            "experiment": self._point.experiment,
            "overrides": redact_words(self._point.overrides),
            "wandb_agent": take_agent(),
        }
        if runs_beside_others():
            self._env["parallel"] = True
        self._write_state("start")
        records.write_schedule(self.folder, job.schedule)
        records.write_json(self.folder / "predicted.json", predict(config, job)._asdict())
        log.debug("%d ranks start, and write to %s", config.ranks * config.replicas, self.folder)
        if config.tracking.follow and config.tracking.mode != "disabled":
            self._follower = follow(self.folder)
        return self.folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is not None and not isinstance(error, RankError):
            self._give_up(error)
            return False
        try:
            if error is None:
                self.close("finished")
            else:
                self._fail(error)
        except Exception as late:  # the ranks have ended, and what follows fails
            self._give_up(late)
            raise
        return True

    def _give_up(self, error: BaseException) -> None:
        """Record an error outside of the ranks, or Ctrl-C, as far as the disk allows."""
        state = "failed" if isinstance(error, Exception) else "interrupted"
        message = None if state == "interrupted" else f"outside of the ranks: {records.in_words(error)}"
        if isinstance(error, OSError):
            message = records.in_a_line(error)
        with suppress(Exception):  # the error itself may be that there is no summary
            close_attempt(self.folder, self._job, state, message)
        if state == "interrupted":
            print_resume(self.folder)

    def _fail(self, error: RankError) -> None:
        """Close the attempt as failed, or as diverged with the message of the rank whose loss was not finite."""
        diverged = [str(row["message"]) for row in records.read_errors(self.folder) if row.get("diverged")]
        if diverged:
            self.close(records.DIVERGED, diverged[0], error.log)
        else:
            self.close("failed", str(error), error.log)

    def close(self, state: str, message: str | None = None, said: Path | None = None) -> None:
        """Write the load average, the summary and the status, and mirror the attempt to W&B."""
        self._write_state("end")
        for changed in changed_data([(getattr(self._config.data, "path", None), self._env)]):
            console.warn(f"{self.folder}: {changed}")
            message = f"{message}; {changed}" if message else None
        close_attempt(self.folder, self._job, state, message, said)
        log.debug("the ranks have ended (%s); summary.json and status.json are written", state)
        mirror_ended(self.folder, state, self._config, self._follower)

    def _write_state(self, moment: str) -> None:
        """Add the load average and what the data are, before (`start`) or after (`end`) the ranks' run, to env.json."""
        self._env["load"] = {**self._env.get("load", {}), moment: records.load_average()}
        if (contents := self._config.data.contents()) is not None:
            self._env["data"] = {**self._env.get("data", {}), moment: contents}
        records.write_json(self.folder / "env.json", self._env)


def close_attempt(attempt: Path, job: Job, state: str, message: str | None = None, said: Path | None = None) -> None:
    """Write the summary and the status of an attempt that has ended; `said` is the file with what a rank printed."""
    records.snapshots.remove_drafts(attempt)
    records.write_json(attempt / "summary.json", records.summarise(job, attempt, state))
    path = attempt / "status.json"
    ended = {"status": state, "message": message, "log": said and str(said), "ended": time.time()}
    records.write_json(path, {**records.read_json(path), **ended})


def follow(attempt: Path) -> subprocess.Popen[bytes]:
    """Start the process that shows an attempt in W&B while it runs; its output goes to `tracking.log`.

    Ctrl-C does not reach it, so that it closes the W&B runs of an attempt that was interrupted.
    """
    command = ["nice", "-n", "19", sys.executable, "-m", "microp.tracking", str(attempt), "--follow"]
    with (attempt / LOG).open("wb") as said:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )


def mirror_ended(attempt: Path, state: str, config: Config, follower: subprocess.Popen[bytes] | None) -> None:
    """Mirror an attempt that has ended in this state, or wait for the process that follows it; warn if that failed."""
    try:
        if follower is not None:
            if follower.wait(END_S):
                raise RuntimeError(f"see {attempt / LOG}")
        elif config.tracking.mode != "disabled":
            mirror(attempt, config.tracking, config.tracking.folder(Path(config.output_dir)))
    except Exception as error:  # W&B may raise anything
        if isinstance(error, subprocess.TimeoutExpired) and follower is not None:
            os.killpg(follower.pid, signal.SIGKILL)  # with what W&B has started
            follower.wait()
            error = TimeoutError(f"{server()} took more than {END_S} s after the run")
        console.warn(
            f"W&B failed for {attempt.parent.name}/{attempt.name} ({records.in_words(error)}), which is {state} and "
            f"recorded. To mirror it later: python -m microp.tracking {shlex.quote(config.output_dir)}"
        )
    else:
        log.debug("W&B: %s/%s, %s", attempt.parent.name, attempt.name, config.tracking.mode)


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
        "processor": processor(),
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
