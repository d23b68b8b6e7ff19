"""Lines as in a shell: what comes of one, and that a command which is not refused would start."""

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from user import microp

from microp.commands import ordering, planning, pricing, profiling
from microp.points.sweep import SweepCallback

PROGRAMS = ("run", "simulate", "profile", "plan", "order")  # the first word of a line; without one of them it is a run
CALLBACKS = (SweepCallback, pricing.PricingCallback, planning.PlanCallback, profiling.ProfileCallback)
CALLBACKS += (ordering.OrderCallback,)


def type_in(folder: Path, line: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Type a line in a folder, with options before it."""
    words = [word.replace("␤", "\n") for word in shlex.split(line)]
    program = words.pop(0) if words and words[0] in PROGRAMS else "run"
    return microp(*options, *words, folder=folder, program=f"microp.{program}", WANDB_MODE="offline")


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Let a command that is not refused end with code 0 where its first point would start."""

    def end(*_):
        raise SystemExit(0)

    with pytest.MonkeyPatch.context() as patch:
        for callback in CALLBACKS:
            patch.setattr(callback, "begin", end)
        yield
