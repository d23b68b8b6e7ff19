"""Mirrors the attempts of a command to W&B, and says what could not be mirrored; that costs no run.

::

    a single run    has ended ─► mirrored ─► the command ends
    a sweep         point 1 has ended ─► mirrored while the ranks of point 2 start ─► first step of point 2
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from microp.app.schema import Config
from microp.store import in_words, mirror
from microp.terminal import console

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from microp.worker import MirrorProcess

log = logging.getLogger(__name__)


class Mirrors:
    """Mirrors attempts, at once or beside the start of the next point's ranks."""

    def __init__(self) -> None:
        self._process: MirrorProcess | None = None
        self._begun: tuple[Path, str, Config] | None = None

    def now(self, attempt: Path, state: str, config: Config) -> None:
        """Mirror an attempt that has ended in this state, or warn that it could not be."""
        with mirroring(attempt, state, config):
            mirror(attempt, config.tracking, config.tracking.folder(Path(config.output_dir)))

    def begin(self, attempt: Path, state: str, config: Config) -> None:
        """Begin to mirror an attempt in a process of its own, after the one before has been mirrored."""
        from microp.worker import MirrorProcess

        self.finish()
        try:
            self._process = self._process or MirrorProcess()
            self._process.begin(attempt, config.tracking, config.tracking.folder(Path(config.output_dir)))
        except Exception as error:
            _warn(attempt, state, config, error)
        else:
            self._begun = attempt, state, config

    def answer(self) -> Connection | None:
        """Return what gets something to read as soon as no attempt is being mirrored any more; None: none is."""
        return self._process.answers if self._process and self._begun else None

    def finish(self) -> None:
        """Wait for the attempt that is being mirrored, if any, and warn if it could not be."""
        if self._process and self._begun:
            begun, self._begun = self._begun, None
            with mirroring(*begun):
                self._process.finish()

    def close(self) -> None:
        """Wait for the attempt that is being mirrored, and end the process; Ctrl-C ends it at once."""
        try:
            self.finish()
        finally:
            if self._process:
                self._process.stop()
            self._begun = None


@contextmanager
def mirroring(attempt: Path, state: str, config: Config) -> Iterator[None]:
    """Warn of any error with which an attempt could not be mirrored: the run is complete without W&B."""
    try:
        yield
    except Exception as error:  # W&B may raise anything
        _warn(attempt, state, config, error)
    else:
        log.debug("W&B: %s/%s is mirrored, %s", attempt.parent.name, attempt.name, config.tracking.mode)


def _warn(attempt: Path, state: str, config: Config, error: Exception) -> None:
    console.warn(
        f"W&B failed for {attempt.parent.name}/{attempt.name} ({in_words(error)}), which is {state} and recorded. "
        f"To mirror it later: python -m microp.tracking {config.output_dir}"
    )


mirrors = Mirrors()  # global, because Hydra creates the callback that ends its process
