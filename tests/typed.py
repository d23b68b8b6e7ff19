"""Types a command in this process and folder: its exit code, and what a user reads."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from microp import run
from microp.commands import ordering, planning, pricing, profiling
from microp.points import PointsCallback
from microp.points.sweep import SweepCallback

SIGNS = {"␤": "\n", "␀": "\0", "␛": "\x1b", "␠": " "}  # so a table shows what cannot be seen
PROGRAMS = {  # the first word of a command -> what it calls; without one of them it is a run
    "run": run.main,
    "simulate": pricing.main,
    "profile": profiling.main,
    "plan": planning.main,
    "order": ordering.main,
}
CALLBACKS = (SweepCallback, pricing.PricingCallback, planning.PlanCallback, profiling.ProfileCallback)
CALLBACKS += (ordering.OrderCallback,)


def words_of(text: str) -> list[str]:
    """Split a line as a shell does; `9⟨5000⟩` is 5000 nines, and signs stand for what cannot be seen."""
    text = re.sub(r"(.)⟨(\d+)⟩", lambda found: found[1] * int(found[2]), text)
    words = shlex.split(text)
    return [re.sub("[" + "".join(SIGNS) + "]", lambda found: SIGNS[found[0]], word) for word in words]


def type_in(folder: Path | None, line: str, patch: pytest.MonkeyPatch) -> int:
    """Type a command, if there is a folder with its options, `-cd FOLDER`, and return the exit code."""
    words = words_of(line)
    program = words.pop(0) if words and words[0] in PROGRAMS else "run"
    patch.setattr(sys, "argv", ["microp", *(["-cd", str(folder)] if folder else []), *words])
    GlobalHydra.instance().clear()
    try:
        PROGRAMS[program]()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        GlobalHydra.instance().clear()
        PointsCallback.began = None
    return 0


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Let a command that is not refused end with code 0 where its first point would start."""

    def end(*_):
        raise SystemExit(0)

    with pytest.MonkeyPatch.context() as patch:
        for callback in CALLBACKS:
            patch.setattr(callback, "begin", end)
        yield
