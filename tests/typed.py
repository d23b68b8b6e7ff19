"""Types a command in this process and folder: its exit code, and what a user reads."""

from __future__ import annotations

import copy
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from microp.commands.planning import PlanCallback, run_plan, search_words
from microp.commands.pricing import PricingCallback, run_price
from microp.commands.profiling import ProfileCallback, run_profile
from microp.config.config import Composed, composer, key_of, register, with_profiles, word_problems
from microp.config.errors import REFUSED, refusal
from microp.config.schema import GROUPS
from microp.sweep.hydra_app import run_app
from microp.sweep.hydra_callbacks import PointsCallback, refuse
from microp.sweep.points import run_point
from microp.sweep.sweep import SweepCallback

SIGNS = {"␤": "\n", "␀": "\0", "␛": "\x1b", "␠": " "}  # so a table shows what cannot be seen
# The first word of a command; without one of them it is a run.
PROGRAMS = {
    "simulate": (run_price, PricingCallback),
    "profile": (run_profile, ProfileCallback),
    "plan": (run_plan, PlanCallback),
}
_composed: dict[tuple, DictConfig] = {}


def words_of(text: str) -> list[str]:
    """Split a line as a shell does; `9⟨5000⟩` is 5000 nines, and signs stand for what cannot be seen."""
    text = re.sub(r"(.)⟨(\d+)⟩", lambda found: found[1] * int(found[2]), text)
    words = shlex.split(text)
    return [re.sub("[" + "".join(SIGNS) + "]", lambda found: SIGNS[found[0]], word) for word in words]


def type_in(folder: Path, line: str, patch: pytest.MonkeyPatch) -> int:
    """Type a command with the options of a folder, `-cd FOLDER`, and return its exit code."""
    words = words_of(line)
    program = words.pop(0) if words and words[0] in PROGRAMS else "config"
    words = search_words(words) if program == "plan" else words
    task, callback = PROGRAMS.get(program, (run_point, SweepCallback))
    try:
        if {"-m", "-cn"} & set(words):
            patch.setattr(sys, "argv", ["microp", "-cd", str(folder), *words])
            GlobalHydra.instance().clear()
            run_app(program, task)
        else:
            _check(folder, program, callback(), with_profiles(words))
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        GlobalHydra.instance().clear()
        PointsCallback.began = None
    return 0


def _check(folder: Path, program: str, callback: PointsCallback, words: list[str]) -> None:
    """Check one run as its command does, with a copy of what Hydra has composed once for these options."""
    register(program)
    options = [word for word in words if key_of(word) in GROUPS]
    try:
        key = folder, program, *options
        if key not in _composed:
            with composer(folder) as searched:
                _composed[key] = compose(program, [*searched, *options], return_hydra_config=True)
        node = copy.deepcopy(_composed[key])
        for override in OverridesParser.create().parse_overrides([word for word in words if word not in options]):
            if not word_problems([override.input_line]):
                OmegaConf.update(node, override.key_or_group, override.value())
    except REFUSED as error:
        refuse(refusal(error))
    problems = word_problems(words)
    callback._start(node, [Composed(words, None if problems else node, problems)])


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Let a command that is not refused end with code 0 where its first point would start."""

    def end(*_):
        raise SystemExit(0)

    with pytest.MonkeyPatch.context() as patch:
        for callback in (SweepCallback, PricingCallback, PlanCallback, ProfileCallback):
            patch.setattr(callback, "begin", end)
        yield
