"""What a sweep needs around its points: check all of them first, show them together after.

::

    Hydra ── on_..._start ──► every point is composed and validated; one bad point: exit 2
          ── run ───────────► point.run_point
          ── on_..._end ────► the table; exit 1 if a point failed
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import pandas as pd
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from microp import launch, terminal
from microp.config import Config, ConfigError, read, run_id, validate, warn
from microp.point import run_point
from microp.records import attempts, read_json, write_json

BAD_INPUT = 2
P = ParamSpec("P")

board = terminal.Board()  # one a process: Hydra makes the callback and calls `run` apart from each other


def run(config: DictConfig) -> None:
    """Hydra's task: run one point."""
    run_point(read(config), board)


def loud(method: Callable[P, None]) -> Callable[P, None]:
    """End the program if a callback fails, which Hydra would turn into a warning."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            board.close()
            traceback.print_exc()
            raise SystemExit(1) from None

    return wrapped


class SweepCallback(Callback):
    """Hydra calls this before and after all points. A single run is a sweep of one."""

    @loud
    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._begin(config, [config])

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if launch.joins():
            refuse([ONE_RUN_ONLY])
        try:
            points = expand(config)
        except (HydraException, OmegaConfBaseException) as error:
            refuse([str(error), *([str(error.__cause__)] if error.__cause__ else [])])
        self._begin(config, points)
        self._folder = Path(config.hydra.sweep.dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._folder / "plan.json", {"command": sys.argv, "points": self._run_ids})

    @loud
    def on_run_end(self, config: DictConfig, **_: Any) -> None:
        if _speaks():
            self._finish(self._summaries())

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        summaries = self._summaries()
        pd.json_normalize(summaries).to_csv(self._folder / "table.csv", index=False)
        self._finish(summaries)

    def _begin(self, config: DictConfig, points: list[DictConfig]) -> None:
        configs = check(points)
        self._run_ids = [run_id(point) for point in configs]
        self._output, self._tracking = Path(config.output_dir), config.tracking.mode
        self._before = set(attempts(self._output / "runs"))
        board.open([point.warmup_steps + point.steps + 1 for point in configs])
        if _speaks():
            for warning in dict.fromkeys(text for point in configs for text in warn(point)):
                terminal.warn(warning)

    def _summaries(self) -> list[dict[str, Any]]:
        """The summaries of the attempts made since `_begin`, in the order of the points."""
        runs = self._output / "runs"
        fresh = [
            attempt
            for name in dict.fromkeys(self._run_ids)
            for attempt in attempts(runs / name)
            if attempt not in self._before and (attempt / "summary.json").exists()
        ]
        return [
            {
                **read_json(attempt / "summary.json"),
                "folder": str(attempt),
                "message": read_json(attempt / "status.json")["message"],
            }
            for attempt in fresh
        ]

    def _finish(self, summaries: list[dict[str, Any]]) -> None:
        board.close()
        terminal.show(summaries, self._output, self._tracking)
        if any(summary["status"] != "finished" for summary in summaries) or not summaries:
            raise SystemExit(1)


ONE_RUN_ONLY = (
    "torchrun starts the ranks of one run, and -m asks for several: "
    "use `python -m microp.run -m ...`, which starts the ranks of each point itself"
)


def _speaks() -> bool:
    """Of the processes of one torchrun launch only rank 0 writes to the terminal."""
    return os.environ.get("RANK", "0") == "0"


def expand(config: DictConfig) -> list[DictConfig]:
    """The composed points of a sweep by Hydra's basic sweeper; none for another sweeper.

    Raises:
        HydraException: a point cannot be composed (an unknown option, a wrong type).
    """
    sweeper = config.hydra.sweeper
    if not sweeper._target_.endswith("BasicSweeper"):
        return []
    loader = GlobalHydra.instance().config_loader()
    stored = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    overrides = OverridesParser.create(config_loader=loader).parse_overrides([*stored, *config.hydra.overrides.task])
    [points] = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return [loader.load_sweep_config(config, point) for point in points]


def check(points: list[DictConfig]) -> list[Config]:
    """All points, read and validated, or the end of the program with all that is wrong."""
    configs, problems = [], []
    for point in points:
        try:
            configs.append(read(point))
            problems += validate(configs[-1])
        except ConfigError as error:
            problems += error.problems
    if problems:
        refuse(list(dict.fromkeys(problems)))
    return configs


def refuse(problems: list[str]) -> NoReturn:
    """Say what has to be changed, and end with exit code 2; nothing has been started."""
    if _speaks():
        for problem in problems:
            terminal.error(problem)
    raise SystemExit(BAD_INPUT)
