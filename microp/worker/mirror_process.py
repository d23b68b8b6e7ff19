"""Mirrors attempts to W&B in a process of its own, while the ranks of the next attempt start.

::

    launcher         attempt 1 has ended ── asks ──► attempt 2 ────────────────────────────────► reads the answer
    mirror process   (keeps W&B loaded)              attempt 1's W&B runs ─ answers, sleeps
    ranks of 2                                       start, connect, are set up ─ wait for the answer ─► first step

So no step is measured while W&B computes. The process is forked from the server of the ranks, since to load what
`mirror` needs takes a second.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from microp.settings import TrackingSettings
from microp.store import discard_unfinished, end_wandb, in_words, mirror
from microp.worker.forkserver import no_other_forkserver, start_forkserver
from microp.worker.launch import end_with_parent, main_module_hidden
from microp.worker.leftovers import own_prefix


class MirrorProcess:
    """A process that mirrors one attempt after another; it is started when it is needed.

    Attributes:
        answers: gets something to read when an attempt has been mirrored, or could not be; None: nothing was asked yet.
    """

    answers: Connection | None = None

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._asked: tuple[Path, Path] | None = None  # an attempt whose answer has not been read, and W&B's folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None  # for what W&B leaves behind in such a process

    def begin(self, attempt: Path, settings: TrackingSettings, folder: Path) -> None:
        """Begin to mirror an attempt, with the arguments of `mirror`; the answer to the one before has been read.

        Raises:
            OSError: the process cannot be started.
        """
        if self._process is None or not self._process.is_alive():
            self._start()
        self._requests.send((attempt.absolute(), settings, folder.absolute()))
        self._asked = attempt, folder

    def _start(self) -> None:
        self.stop()
        start_forkserver(0)
        self._temporary = tempfile.TemporaryDirectory(prefix=own_prefix(), ignore_cleanup_errors=True)
        context = multiprocessing.get_context("forkserver")
        requests, self._requests = context.Pipe(duplex=False)
        self.answers, answers = context.Pipe(duplex=False)
        with requests, answers, main_module_hidden(_serve), no_other_forkserver():
            process = context.Process(target=_serve, args=(requests, answers, self._temporary.name), daemon=True)
            process.start()
        self._process = process

    def finish(self) -> None:
        """Wait until the attempt is mirrored.

        Raises:
            RuntimeError: it could not be mirrored; the message says why.
        """
        assert self.answers is not None, "nothing was asked"
        assert self._asked is not None, "the answer has been read"
        try:
            problem = self.answers.recv()
        except (EOFError, OSError):
            self.stop()
            problem = "its process ended"
        self._asked = None
        if problem is not None:
            raise RuntimeError(problem)

    def stop(self) -> None:
        """End the process, at once if an attempt is being mirrored that nobody has waited for."""
        if self._process is None:
            return
        self._requests.close()
        if self._asked is not None:
            self._process.kill()
        self._process.join()
        if self._asked is not None:
            discard_unfinished(*self._asked)
        if self.answers is not None:
            self.answers.close()
        if self._temporary is not None:
            self._temporary.cleanup()
        self._process = self._asked = self.answers = self._temporary = None


def _serve(requests: Connection, answers: Connection, temporary: str) -> None:
    """Mirror one attempt after another until nothing more can be asked; this is the process."""
    tempfile.tempdir = temporary
    gc.freeze()  # the collector need not scan the objects from before the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which waits for what has begun
    end_with_parent()
    try:
        while True:
            asked = requests.recv()
            problem = None
            try:
                mirror(*asked)
            except Exception as error:  # W&B may raise anything
                problem = in_words(error)
            answers.send(problem)
    except EOFError:
        end_wandb()
