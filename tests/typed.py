"""Types a command in this process and folder: its exit code, and what a user reads."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from warm import mode_reader

from microp import run
from microp.commands import ordering, planning, pricing, profiling
from microp.points import PointsCallback
from microp.points.sweep import SweepCallback

PROGRAMS = {  # the first word of a command -> what it calls; without one of them it is a run
    "run": run.main,
    "simulate": pricing.main,
    "profile": profiling.main,
    "plan": planning.main,
    "order": ordering.main,
}
CALLBACKS = (SweepCallback, pricing.PricingCallback, planning.PlanCallback, profiling.ProfileCallback)
CALLBACKS += (ordering.OrderCallback,)


def type_in(folder: Path | None, line: str, patch: pytest.MonkeyPatch) -> int:
    """Type a line as in a shell, if there is a folder with its options, `-cd FOLDER`, and return the exit code."""
    words = [word.replace("␤", "\n") for word in shlex.split(line)]
    program = words.pop(0) if words and words[0] in PROGRAMS else "run"
    patch.setattr(sys, "argv", ["microp", *(["-cd", str(folder)] if folder else []), *words])
    patch.setattr(Hydra, "get_mode", mode_reader(words))
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
