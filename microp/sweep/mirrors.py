"""Mirrors the attempts of a command to W&B, and says what could not be mirrored; that costs no run.

::

    offline   attempt 1 ─► mirrored ─► attempt 2 ─► mirrored
    online    attempt 1 ─────────────────────► waits ─► attempt 2
              └─ `microp.tracking --follow` ───┘        at most END_S: the rest is done later, by the same command
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from microp.config import Config
from microp.mirror import mirror
from microp.records import in_words
from microp.system import server
from microp.terminal import console

END_S = 60  # that W&B gets after a run that was followed, in seconds
LOG = "tracking.log"  # in the attempt's folder: what the process says that follows it
log = logging.getLogger(__name__)


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
