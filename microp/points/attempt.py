"""Executes a run once and writes the folder of that attempt.

::

    Attempt opens    config.yaml  env.json  schedule.txt  predicted.json  status.json: running
      the ranks      steps, spans, errors
    Attempt closes   summary.json  status.json: finished, failed, diverged or interrupted  ─► W&B, tracked.json

If the machine refuses something (OSError: no room, no descriptors), the next run would fail too: the failure is
recorded and raised. Any other error costs this attempt only, and W&B costs none::

    offline   attempt 1 ─► mirrored ─► attempt 2 ─► mirrored
    online    attempt 1 ─────────────────────► waits ─► attempt 2
              └─ `microp.tracking --follow` ───┘        at most END_S: the rest is done later, by the same command
"""

from __future__ import annotations

import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from microp.config import Config, predict, to_yaml
from microp.job import Job
from microp.mirror import mirror, take_agent
from microp.points.hydra_app import runs_beside_others
from microp.points.next_commands import print_resume
from microp.records import (
    DIVERGED,
    RUNNING,
    changed_while,
    in_a_line,
    in_words,
    load_average,
    new_attempt,
    read_errors,
    snapshots,
    summarise,
    this_process,
    write_json,
    write_schedule,
    write_text,
)
from microp.system import places, processor, redact_words, server
from microp.terminal import console
from microp.worker import RankError

END_S = 60  # that W&B gets after a run that was followed, in seconds
LOG = "tracking.log"  # in the attempt's folder: what the process says that follows it
log = logging.getLogger(__name__)


class Attempt:
    """A context in which the ranks of one job run; a failure of this attempt alone is recorded and not raised.

    Its `folder` gets all files: one that has been made, else the next one of the run.

    Raises:
        OSError: the machine refused something that the next run needs too; the failure is recorded if there is room.
        KeyboardInterrupt: Ctrl-C, after it has been recorded.
    """

    def __init__(
        self,
        config: Config,
        job: Job,
        experiment: str | None,
        overrides: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        # What is recorded is what was done.
        config = replace(config, tracking=config.tracking.reachable(), device=job.device)
        self._config, self._job = config, job
        self._follower: subprocess.Popen[bytes] | None = None
        self.folder = folder or new_attempt(Path(config.output_dir) / "runs", job.run_id)
        try:
            self._open(experiment, overrides)
        except BaseException:  # nothing has run in it
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # other attempts are in it
                self.folder.parent.rmdir()
            raise

    def _open(self, experiment: str | None, overrides: Sequence[str]) -> None:
        """Write what is known before the ranks start, and start the process that follows them."""
        config = self._config
        self._status: dict[str, Any] = {"uid": uuid.uuid4().hex[:12], **this_process(), "started": time.time()}
        if "SLURM_JOB_ID" in os.environ:
            self._status["slurm_job"] = os.environ["SLURM_JOB_ID"]
        if self._job.resumed:
            self._status["resumed"] = snapshots.about(self._job.resumed, self.folder)
        self._write_status(RUNNING)  # first, so that an attempt without a status is damaged
        write_text(self.folder / "config.yaml", to_yaml(config))
        asked: dict[str, Any] = {
            "experiment": experiment,
            "overrides": redact_words(overrides),
            "wandb_agent": take_agent(),
        }
        if runs_beside_others():
            asked["parallel"] = True
        self._env = {**_environment(), **asked}
        self._write_state("start")
        write_schedule(self.folder, self._job.schedule)
        write_json(self.folder / "predicted.json", predict(config, self._job)._asdict())
        log.debug("%d ranks start, and write to %s", config.ranks * config.replicas, self.folder)
        if config.tracking.follow and config.tracking.mode != "disabled":
            self._follower = follow(self.folder)

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        try:
            if error is None:
                self.close("finished")
            elif isinstance(error, RankError):
                self._fail(error)
            else:
                self._give_up(error)
        except Exception as late:  # the ranks have ended, and what follows fails
            self._give_up(late)
            if isinstance(late, OSError):
                raise
            return True
        return isinstance(error, Exception) and not isinstance(error, OSError)

    def _give_up(self, error: BaseException) -> None:
        """Record an error outside of the ranks, as far as the disk allows."""
        state, message = "failed", None
        if isinstance(error, OSError):
            message = in_a_line(error)
        elif isinstance(error, Exception):
            message = f"outside of the ranks: {in_words(error)}"
            self._status["log"] = str(path := self.folder / "launcher.log")
            with suppress(OSError):
                write_text(path, "".join(traceback.format_exception(error)))
        else:  # Ctrl-C
            state = "interrupted"
        with suppress(OSError):
            snapshots.remove_drafts(self.folder)
        with suppress(Exception):  # the error itself may be that there is no summary
            write_json(self.folder / "summary.json", summarise(self._job, self.folder, state))
        with suppress(OSError):
            self._write_status(state, message)
            if state == "interrupted":
                print_resume(self.folder)

    def _fail(self, error: RankError) -> None:
        """Close the attempt as failed, or as diverged with the message of the rank whose loss was not finite."""
        self._status["log"] = str(error.log) if error.log else None
        diverged = [str(row["message"]) for row in read_errors(self.folder) if row.get("diverged")]
        if diverged:
            said = diverged[0].rpartition(": ")[0]  # without the remedy, which may be another one: see `explained`
            self.close(DIVERGED, str(error) if str(error).startswith(said) else diverged[0])
        else:
            self.close("failed", str(error))

    def close(self, state: str, message: str | None = None) -> None:
        """Write the load average, the summary and the status, and mirror the attempt to W&B."""
        self._write_state("end")
        if changed := changed_while(getattr(self._config.data, "path", None), self._env):
            console.warn(f"{self.folder}: {changed}")
            message = f"{message}; {changed}" if message else None
        snapshots.remove_drafts(self.folder)
        write_json(self.folder / "summary.json", summarise(self._job, self.folder, state))
        self._write_status(state, message)
        took = self._status["ended"] - self._status["started"]
        log.debug("the ranks ended after %.1f s (%s); summary.json and status.json are written", took, state)
        mirror_ended(self.folder, state, self._config, self._follower)

    def _write_state(self, moment: str) -> None:
        """Add the load average and what the data are, before (`start`) or after (`end`) the ranks' run, to env.json."""
        self._env["load"] = {**self._env.get("load", {}), moment: load_average()}
        if (contents := self._config.data.contents()) is not None:
            self._env["data"] = {**self._env.get("data", {}), moment: contents}
        write_json(self.folder / "env.json", self._env)

    def _write_status(self, state: str, message: str | None = None) -> None:
        if state != RUNNING:
            self._status["ended"] = time.time()
        write_json(self.folder / "status.json", {"status": state, "message": message, **self._status})


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
            f"W&B failed for {attempt.parent.name}/{attempt.name} ({in_words(error)}), which is {state} and recorded. "
            f"To mirror it later: python -m microp.tracking {shlex.quote(config.output_dir)}"
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
