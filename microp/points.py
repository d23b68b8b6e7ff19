"""Around the points of a command: compose and check all of them before the first, speak after the last.

::

    Hydra ── on_..._start ──► every point composed, read, checked ── one is bad ──► exit 2
          ── task ──────────► point after point
          ── on_..._end ────► end
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, ParamSpec

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from microp import terminal
from microp.config import Config, ConfigError, read

BAD_INPUT = 2
P = ParamSpec("P")


def loud(method: Callable[P, None]) -> Callable[P, None]:
    """End the program if a callback fails, which Hydra would turn into a warning."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None

    return wrapped


class PointsCallback(Callback):
    """Hydra calls this before and after all points; a single run is one point.

    Attributes:
        began: whether the points were good, so that something may have been started.
    """

    began: ClassVar[bool] = False

    def problems_of(self, config: Config) -> list[str]:
        """All that is wrong with a point."""
        raise NotImplementedError

    def begin(self, config: DictConfig, configs: list[Config]) -> None:
        """All points are good; nothing has been started."""

    def end(self, config: DictConfig) -> None:
        """The last point has ended."""

    @loud
    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._start(config, [config])

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            points = expand(config)
        except (HydraException, OmegaConfBaseException) as error:
            refuse([str(error), *([str(error.__cause__)] if error.__cause__ else [])])
        self._start(config, points)

    @loud
    def on_run_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    def _start(self, config: DictConfig, points: list[DictConfig]) -> None:
        configs, problems = [], []
        for point in points:
            try:
                configs.append(read(point))
                problems += self.problems_of(configs[-1])
            except ConfigError as error:
                problems += error.problems
        if problems:
            refuse(list(dict.fromkeys(problems)))
        PointsCallback.began = True
        self.begin(config, configs)


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


def speaks() -> bool:
    """Of the processes of one torchrun launch only rank 0 writes to the terminal."""
    return os.environ.get("RANK", "0") == "0"


def refuse(problems: list[str]) -> NoReturn:
    """Say what has to be changed, and end with exit code 2; nothing has been started."""
    if speaks():
        for problem in problems:
            terminal.error(problem)
    raise SystemExit(BAD_INPUT)
