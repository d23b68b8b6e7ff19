"""Shows an attempt in W&B while it runs, by a process of its own that costs the ranks as little as possible.

::

    Attempt ── start ──► process at the lowest priority
    ranks ── rows on disk ──► follow: every 2 s to W&B
    Attempt ── status: finished ──► mirror what is left, end
            ── wait ──► at most 60 s; then it is ended, and `python -m microp.tracking` can do the rest

It reads only files, so neither an error of W&B nor a lost connection reaches the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import ClassVar

from microp.settings import TrackingSettings, server
from microp.store.files import in_words
from microp.store.records import read_config
from microp.store.wandb_files import discard_unfinished
from microp.store.wandb_mirror import follow, mirror

END_S = 60  # seconds that W&B gets after the run has ended
SOON_S = 5  # the same after it once took longer
_ERROR = "error: "  # begins the line of why the process failed
_LOWEST = 19  # of the priorities of Unix
_CODE = "import sys; from microp.store.wandb_follower import main; main(sys.argv[1], int(sys.argv[2]))"


class Follower:
    """The process that follows one attempt.

    Args:
        attempt: the folder of an attempt whose configuration and status have been written.

    Attributes:
        patience_s: the longest wait for W&B after a run, in seconds; short once it was not enough.
    """

    patience_s: ClassVar[float] = END_S

    def __init__(self, attempt: Path) -> None:
        self._attempt = attempt
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        kept = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}  # it gets its own helper
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _CODE, str(self._attempt), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**kept, "PYTHONPATH": path.rstrip(os.pathsep)},
                start_new_session=True,  # so that a Ctrl-C for the run lets it close the W&B runs
            )

    @property
    def log(self) -> Path:
        """The file with what the process printed."""
        return self._attempt / "tracking.log"

    def wait(self) -> None:
        """Wait until the attempt, which has ended, is complete in W&B. A process that failed before is started again.

        Raises:
            TimeoutError: it took longer; the process was ended.
            RuntimeError: the process failed; the message is the error that it told.
        """
        if self._process.poll():
            self._process = self._start()
        try:
            code = self._process.wait(self.patience_s)
        except subprocess.TimeoutExpired as late:
            self.stop()
            Follower.patience_s = SOON_S  # a server that is away must not delay each point of a sweep
            settings = _settings(self._attempt)
            discard_unfinished(self._attempt, settings.folder(self._attempt.parents[2]))
            where = f"{server()} " if settings.mode == "online" else ""
            message = f"{where}took more than {late.timeout:g} s after the run"
            with self.log.open("a") as log:
                print(message, file=log)
            raise TimeoutError(message) from None
        if code:
            said = self.log.read_text(errors="replace").splitlines()  # W&B may print more while the process ends
            told = [line.removeprefix(_ERROR) for line in said if line.startswith(_ERROR)]
            raise RuntimeError(told[-1] if told else f"its process ended with code {code}; see {self.log}")

    def stop(self) -> None:
        """End the process and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _settings(attempt: Path) -> TrackingSettings:
    return TrackingSettings.recorded(read_config(attempt)["tracking"])


def main(attempt: str, parent: int) -> None:
    """Follow an attempt until it has ended, and complete its W&B runs; this is the process.

    Args:
        attempt: the attempt's folder.
        parent: the number of the process that runs the attempt.
    """
    os.nice(_LOWEST)
    try:
        _follow(Path(attempt), parent)
    except Exception as error:
        traceback.print_exc()
        sys.exit(f"{_ERROR}{in_words(error)}")


def _follow(attempt: Path, parent: int) -> None:
    settings = _settings(attempt)
    folder = settings.folder(attempt.parents[2])
    opened = follow(attempt, settings, folder, lambda: os.getppid() == parent)
    if opened is None:
        return
    signal.alarm(END_S)  # also if nobody waits any more
    began = time.monotonic()
    mirror(attempt, settings, folder, opened)
    print(f"complete {time.monotonic() - began:.1f} s after the run had ended")
