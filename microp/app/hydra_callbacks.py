"""Checks all points of a command before the first one runs, and keeps what was prepared for each of them.

::

    Hydra ── on_..._start ──► every point composed, read, prepared ── one is bad ──► exit code 2
          ── task ──────────► point after point, each takes what was prepared for it
          ── on_..._end ────► end
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, ParamSpec

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from microp.app.config import plain, read_composed, what_runs
from microp.app.errors import ConfigError, Stop, fitted
from microp.app.hydra_internals import Composed, compose_points, is_basic, launches_in_turn, together, typed_overrides
from microp.app.hydra_problems import REFUSED, hydra_problems
from microp.app.knobs import NOTHING_LEFT, Knobs
from microp.app.schema import Config
from microp.settings import not_writable, quoted
from microp.terminal import console

BAD_INPUT = 2
SILENT_S = 10  # the longest time that another rank of torchrun waits for rank 0 to print what is wrong, in seconds
log = logging.getLogger(__name__)
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
        except Exception as error:
            raise stop_for(error) from error

    return wrapped


def stop_for(error: Exception) -> Stop:
    """Return what ends the command after an error that is not the user's input: what the machine refused, or a bug."""
    from microp.store import RecordError, in_a_line  # imported late: --help and TAB do without it

    if isinstance(error, OSError):
        return Stop(in_a_line(error))
    if isinstance(error, RecordError):
        return Stop(str(error))
    text = " ".join(str(error).split())
    return Stop(f"{type(error).__name__}{f': {text}' if text else ''} (HYDRA_FULL_ERROR=1 shows where)")


class PointsCallback(Callback):
    """Hydra's callback before and after all points of a command; a single run is one point.

    Attributes:
        began: whether all points were valid, so that runs may have been started.
        skipped: the overrides of the points that `skip` leaves out.
    """

    began: ClassVar[bool] = False
    skipped: Sequence[list[str]] = ()
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
        """Return what was prepared for a point.

        It is prepared now if that was done in another process.
        """
        found = cls._prepared.pop(_key(config), None)
        return cls.prepare(config) if found is None else found

    @classmethod
    def all_problems(cls, error: Exception) -> list[str]:
        """Return why configurations were refused, and what else is wrong with them.

        They are read without the overrides that were refused. What is then found is left out if it names a refused
        key, because that key has its default instead of the user's value.
        """
        found, knobs = hydra_problems(error), Knobs()
        rests = error.rests if isinstance(error, ConfigError) else []
        for rest in rests:
            try:
                cls.read(rest.overrides, rest.config, knobs)
            except ConfigError as more:
                found += [problem for problem in more.problems if not _names(problem, rest.refused)]
        refused = [key for rest in rests for key in rest.refused]
        return list(dict.fromkeys(found + [problem for problem in knobs.problems if not _names(problem, refused)]))

    def problems_together(self, points: list[Point]) -> list[str]:
        """Return what is wrong with valid points as points of one command."""
        return []

    @classmethod
    def read(cls, overrides: list[str], node: DictConfig, knobs: Knobs) -> Point:
        """Return a point, checked and prepared, and add its knobs; raises as `prepare`."""
        asked = read_composed(node)
        if asked.skip:  # a single run; a sweep has left such points out before
            raise ConfigError([NOTHING_LEFT])
        knobs.add(overrides, asked)
        point = what_runs(asked)
        return Point(overrides, point, cls.check(point))

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        """React to the start of the command: all points are valid, and nothing has been started."""

    def end(self, config: DictConfig) -> None:
        """React to the end of the last point."""

    def dry_run(self, config: DictConfig, points: list[Composed]) -> None:
        """Show what the command would do and exit, if the command can; else nothing happens, and `prepare` refuses."""

    @loud
    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        if _is_dry(config):
            self.dry_run(config, [Composed(typed_overrides(config), config, [], [])])
        self._start(config, [(typed_overrides(config), config)])

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            composed = compose_points(config)
            if any(_is_dry(node) for node in (config, *(each.config for each in composed))):
                self.dry_run(config, composed)
            points = together(composed)
            left = [(overrides, node) for overrides, node in points if not node.skip]
        except REFUSED as error:
            refuse(self.all_problems(error))
        if points and not left:
            refuse([NOTHING_LEFT])
        self.skipped = [overrides for overrides, node in points if node.skip]
        self._start(config, left)

    @loud
    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Remove the file in which Hydra repeats the whole command, secrets included; plan.json has it without them."""
        if is_sweep(config):
            (Path(config.hydra.sweep.dir) / "multirun.yaml").unlink(missing_ok=True)

    @loud
    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Release the point's configurations, which Hydra would keep until the last point has run."""
        job_return.cfg = job_return.hydra_cfg = None

    @loud
    def on_run_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    def _start(self, config: DictConfig, composed: list[tuple[list[str], DictConfig]]) -> None:
        points, problems, knobs = [], [], Knobs()
        for overrides, node in composed:
            try:
                points.append(self.read(overrides, node, knobs))
            except ConfigError as error:
                problems += error.problems
        if problems := problems + knobs.problems + self.problems_together(points) or _folder_problem(config):
            refuse(list(dict.fromkeys(problems)))
        if speaks():
            for note in knobs.notes:
                console.note(note)
        log.debug("%s composed and checked", "1 point is" if len(points) == 1 else f"{len(points)} points are")
        PointsCallback.began = True
        self.begin(config, points)


def _names(problem: str, keys: list[str]) -> bool:
    """Return whether a problem names one of these keys, or a key of one of these groups."""
    return any(re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", problem) for key in keys)


def _is_dry(config: DictConfig | None) -> bool:
    return config is not None and OmegaConf.select(config, "dry_run") is True


def _folder_problem(config: DictConfig) -> list[str]:
    """Return why Hydra's own folder cannot be made; one in `output_dir` is checked with each point."""
    key = "hydra.sweep.dir" if is_sweep(config) else "hydra.run.dir"
    with suppress(OmegaConfBaseException):  # it depends on what Hydra only knows in a point
        folder = Path(str(OmegaConf.select(config, key)))
        inside = folder.is_relative_to(config.output_dir)
        if not inside and not folder.is_dir() and (reason := not_writable(folder)):
            return [f"{key}={quoted(folder)} cannot be written ({reason}): choose another folder"]
    return []


def _key(config: Config) -> str:
    return json.dumps(plain(config), sort_keys=True, default=str)


def is_sweep(config: DictConfig) -> bool:
    """Return whether the command is a sweep: `-m`, or a stored sweep."""
    return bool(config.hydra.mode is RunMode.MULTIRUN)


def config_name() -> str:
    """Return the name of the running point's primary configuration: `config`, or that of a stored sweep."""
    return str(HydraConfig.get().job.config_name) if HydraConfig.initialized() else "config"


def overrides() -> list[str]:
    """Return the overrides of the running point; none outside of a command."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def chooses_points() -> bool:
    """Return whether the running point was chosen by a sweeper that learns from the points before it, as Optuna's."""
    return sweep_folder() is not None and not is_basic(HydraConfig.get().sweeper)


def runs_beside_others() -> bool:
    """Return whether the running point's launcher runs several points of the sweep at the same time."""
    return sweep_folder() is not None and not launches_in_turn(HydraConfig.get().launcher)


def runs_before_others() -> bool:
    """Return whether this process runs the points of the running point's sweep one after another."""
    return sweep_folder() is not None and launches_in_turn(HydraConfig.get().launcher)


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
    if os.environ.get("LOCAL_RANK", "0") == "0":  # each host may have problems of its own
        for problem in problems:
            console.error(fitted(problem))
    else:  # torchrun stops all ranks of a host as soon as one exits, so the one that speaks must be the first
        time.sleep(SILENT_S)
    raise SystemExit(BAD_INPUT)
