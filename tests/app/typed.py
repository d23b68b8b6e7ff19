"""Types a command in this process, in milliseconds: what is refused, in the words that a user reads.

::

    "chunks=0 steps=2"  ── choices of options, composed once ── values, set in a copy ── checked ──► exit code, stderr

The parts are those of a command: Hydra's loader composes, the callback reads, checks and prepares the point, and
`refuse` prints and exits.
"""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from pathlib import Path

from hydra.types import RunMode

from microp.app import CONF
from microp.app.config import register_schemas, with_profiles
from microp.app.hydra_callbacks import refuse
from microp.app.hydra_internals import composer, expand
from microp.app.hydra_loader import current
from microp.app.hydra_pace import copied
from microp.app.hydra_problems import REFUSED
from microp.app.interrupts import watched
from microp.app.planning import PlanCallback, search_words
from microp.app.pricing import PricingCallback
from microp.app.profiling import ProfileCallback
from microp.app.sweep import SweepCallback

SIGNS = {"␤": "\n", "␀": "\0", "␛": "\x1b", "␠": " "}  # so a table shows what cannot be seen


def words_of(text: str) -> list[str]:
    """Split a line as a shell does; `9⟨5000⟩` is 5000 nines, and signs stand for what cannot be seen."""
    text = re.sub(r"(.)⟨(\d+)⟩", lambda found: found[1] * int(found[2]), text)
    words = shlex.split(text)
    return [re.sub("[" + "".join(SIGNS) + "]", lambda found: SIGNS[found[0]], word) for word in words]


class _Refuses:
    """A callback that only checks: what would begin a run is left out."""

    def begin(self, config, points):
        """Start nothing, but keep what was prepared."""
        _Refuses.points = points


class _Run(_Refuses, SweepCallback):
    """A run's checks."""


class _Price(_Refuses, PricingCallback):
    """A price's checks."""


class _Plan(_Refuses, PlanCallback):
    """A plan's checks."""


class _Profile(_Refuses, ProfileCallback):
    """A profile's checks."""


# The first word of a command; without one of them it is a run.
PROGRAMS = {"simulate": _Price, "profile": _Profile, "plan": _Plan}


class Terminal:
    """A folder in which commands are typed.

    Args:
        folder: it has the user's own options and stored sweeps, as with `-cd FOLDER`.
    """

    def __init__(self, folder: Path) -> None:
        register_schemas()
        self._stack = ExitStack()
        self._hydra = self._stack.enter_context(composer(CONF, folder))
        self._composed: dict[tuple[str, ...], tuple] = {}

    @property
    def made(self):
        """What was prepared for the last command that was not refused: a job, or a pricing job."""
        [point] = _Refuses.points
        return point.made

    @property
    def config(self):
        """The configuration of that command."""
        [point] = _Refuses.points
        return point.config

    def close(self) -> None:
        """Give Hydra its state back."""
        self._stack.close()

    def type(self, line: str) -> int:
        """Check a command, and print what is wrong with it: the exit code, 0 for a command that would run."""
        words = words_of(line)
        first = words[0] if words else ""
        program, name = PROGRAMS.get(first, _Run), first if first in PROGRAMS else "config"
        whole = first == "whole"
        words = words[1:] if whole or first in PROGRAMS else words
        words = with_profiles(search_words(words) if program is _Plan else words)
        is_sweep = "-m" in words
        words = [word for word in words if word != "-m"]
        if words[:1] == ["-cn"]:
            name, words = words[1], words[2:]
            whole = True
        try:
            try:
                with watched():
                    self._check(program(), name, words, is_sweep, whole)
            except REFUSED as error:
                refuse(program.all_problems(error))
        except SystemExit as exit:
            return int(exit.code)
        return 0

    def _check(self, callback, name: str, words: list[str], is_sweep: bool, whole: bool) -> None:
        if is_sweep or whole:
            mode = RunMode.MULTIRUN if is_sweep else RunMode.RUN
            asked = ["hydra.mode=MULTIRUN"] if is_sweep else []
            config = current().load_configuration(name, [*words, *asked], mode)
            if RunMode.MULTIRUN in (mode, config.hydra.mode):
                callback._start(config, [(typed, node) for typed, node in expand(config) if not node.skip])
            else:
                callback._start(config, [(words, config)])
        else:
            node = self._point(name, words)
            callback._start(node, [(words, node)])

    def _point(self, name: str, words: list[str]):
        """The composed configuration; as in a sweep, the choices of options are composed once."""
        loader = current()
        options, values = loader.split(words)
        key = (name, *options)
        if key not in self._composed:
            node = loader.load_configuration(name, options, RunMode.RUN)
            self._composed[key] = node, dict(node.hydra.runtime.choices)
        node, choices = copied(self._composed[key])
        loader.apply(node, choices, values)
        return node
