"""Checks all points of a command before the first one runs, and keeps what was prepared for each of them.

::

    Hydra ── on_..._start ──► every point composed, read, prepared ── one is bad ──► exit code 2
          ── task ──────────► point after point, each takes what was prepared for it
          ── on_..._end ────► end
"""

from __future__ import annotations

import functools
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, ParamSpec

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from microp.app import terminal
from microp.app.config import Config, plain, read_config
from microp.app.errors import ConfigError
from microp.app.hydra_internals import expand, typed_overrides
from microp.app.hydra_problems import REFUSED, hydra_problems

BAD_INPUT = 2
P = ParamSpec("P")


class Point(NamedTuple):
    """One point of a command.

    Attributes:
        overrides: the overrides that were typed for it.
        config: the configuration that Hydra composed.
        made: the result of `PointsCallback.prepare`: a job or a pricing job.
    """

    overrides: list[str]
    config: Config
    made: Any


def loud(method: Callable[P, None]) -> Callable[P, None]:
    """Return a callback that ends the program if it fails; Hydra would only warn."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None

    return wrapped


class PointsCallback(Callback):
    """Hydra's callback before and after all points of a command; a single run is one point.

    Attributes:
        began: whether all points were valid, so that runs may have been started.
    """

    began: ClassVar[bool] = False
    _prepared: ClassVar[dict[str, Any]] = {}

    @classmethod
    def prepare(cls, config: Config) -> Any:
        """Check a point and return what its task needs.

        Raises:
            ConfigError: the point is invalid.
        """
        raise NotImplementedError

    @classmethod
    def check(cls, config: Config) -> Any:
        """Prepare a point, and keep the result for its turn; raises as `prepare`."""
        made = cls._prepared[_key(config)] = cls.prepare(config)
        return made

    @classmethod
    def take(cls, config: Config) -> Any:
        """Return what was prepared for a point; prepare it now if that was done in another process."""
        found = cls._prepared.pop(_key(config), None)
        return cls.prepare(config) if found is None else found

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        """React to the start of the command: all points are valid, and nothing has been started."""

    def end(self, config: DictConfig) -> None:
        """React to the end of the last point."""

    @loud
    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._start(config, [(typed_overrides(config), config)])

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            points = [(overrides, node) for overrides, node in expand(config) if not node.skip]
        except REFUSED as error:
            refuse(hydra_problems(error))
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
                point = read_config(node)
                points.append(Point(overrides, point, self.check(point)))
            except ConfigError as error:
                problems += error.problems
        if problems:
            refuse(list(dict.fromkeys(problems)))
        PointsCallback.began = True
        self.begin(config, points)


def _key(config: Config) -> str:
    return json.dumps(plain(config), sort_keys=True, default=str)


def is_sweep(config: DictConfig) -> bool:
    """Return whether the command is a sweep: `-m`, or a stored sweep."""
    return bool(config.hydra.mode is RunMode.MULTIRUN)


def config_name() -> str:
    """Return the name of the running point's primary configuration: `config`, or that of a stored sweep."""
    return str(HydraConfig.get().job.config_name) if HydraConfig.initialized() else "config"


def sweep_folder() -> Path | None:
    """Return the folder of the running point's sweep; None for a single run."""
    if not HydraConfig.initialized() or HydraConfig.get().mode is not RunMode.MULTIRUN:
        return None
    return Path(HydraConfig.get().sweep.dir)


def speaks() -> bool:
    """Return whether this process writes to the terminal; of a torchrun launch only rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


def refuse(problems: list[str]) -> NoReturn:
    """Print what has to be changed, and exit with code 2; nothing has been started."""
    if speaks():
        for problem in problems:
            terminal.error(problem)
    raise SystemExit(BAD_INPUT)
