"""Around the points of a command: compose and check all of them before the first, speak after the last.

::

    Hydra ── on_..._start ──► every point composed, read, checked ── one is bad ──► exit 2
          ── task ──────────► point after point
          ── on_..._end ────► end
"""

from __future__ import annotations

import copy
import functools
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, ParamSpec

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from microp import terminal
from microp.config import Config, ConfigError, in_a_line, read

BAD_INPUT = 2
P = ParamSpec("P")


class Point(NamedTuple):
    """One point of a command: what was typed for it, and the configuration that came of it."""

    overrides: list[str]
    config: Config


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

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        """All points are good; nothing has been started."""

    def end(self, config: DictConfig) -> None:
        """The last point has ended."""

    @loud
    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._start(config, [(list(config.hydra.overrides.task), config)])

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            points = [(overrides, node) for overrides, node in expand(config) if not node.skip]
        except OmegaConfBaseException as error:
            refuse([in_a_line(error)])
        except HydraException as error:
            refuse([str(error), *([str(error.__cause__)] if error.__cause__ else [])])
        self._start(config, points)

    @loud
    def on_run_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    def _start(self, config: DictConfig, composed: list[tuple[list[str], DictConfig]]) -> None:
        points, problems = [], []
        for overrides, node in composed:
            try:
                points.append(Point(overrides, read(node)))
                problems += self.problems_of(points[-1].config)
            except ConfigError as error:
                problems += error.problems
        if problems:
            refuse(list(dict.fromkeys(problems)))
        PointsCallback.began = True
        self.begin(config, points)


def expand(config: DictConfig) -> list[tuple[list[str], DictConfig]]:
    """The points of a sweep by Hydra's basic sweeper, composed; none for another sweeper.

    Composing takes 70 ms, so it is done once for each choice of options; the values follow.

    Raises:
        HydraException: a point cannot be composed (an unknown option, a wrong type).
    """
    sweeper = config.hydra.sweeper
    if not sweeper._target_.endswith("BasicSweeper"):
        return []
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    stored = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    overrides = parser.parse_overrides([*stored, *config.hydra.overrides.task])
    [points] = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    composed: dict[tuple[str, ...], DictConfig] = {}
    found = []
    for point in points:
        parsed = parser.parse_overrides(point)
        values = [each for each in parsed if not loader.repository.group_exists(each.key_or_group)]
        options = tuple(str(each.input_line) for each in parsed if each not in values)
        if options not in composed:
            composed[options] = loader.load_sweep_config(config, list(options))
            with read_write(composed[options]), open_dict(composed[options]):
                composed[options].pop("hydra")  # the larger part, and nothing in it is a point's own
        node = copy.deepcopy(composed[options])
        ConfigLoaderImpl._apply_overrides_to_config(values, node)
        found.append((list(point), node))
    return found


def is_sweep(config: DictConfig) -> bool:
    """Whether the command asks for a sweep: -m, or a stored one."""
    return bool(config.hydra.mode is RunMode.MULTIRUN)


def config_name() -> str:
    """For a point that is being run: the primary configuration's name, `config` or that of a stored sweep."""
    return str(HydraConfig.get().job.config_name)


def sweep_folder() -> Path | None:
    """For a point that is being run: the folder of its sweep; None for a single run."""
    hydra = HydraConfig.get()
    return Path(hydra.sweep.dir) if hydra.mode is RunMode.MULTIRUN else None


def speaks() -> bool:
    """Of the processes of one torchrun launch only rank 0 writes to the terminal."""
    return os.environ.get("RANK", "0") == "0"


def refuse(problems: list[str]) -> NoReturn:
    """Say what has to be changed, and end with exit code 2; nothing has been started."""
    if speaks():
        for problem in problems:
            terminal.error(problem)
    raise SystemExit(BAD_INPUT)
