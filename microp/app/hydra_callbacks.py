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

from microp.app.composing import Composed, compose_points, is_basic, refusal, typed_overrides, word_problems
from microp.app.config import plain, read_composed, what_runs
from microp.app.errors import REFUSED, ConfigError, Stop, fitted
from microp.app.knobs import NOTHING_LEFT, Knobs
from microp.app.schema import Config
from microp.settings import is_joined, not_writable, quoted
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


def stop_on_error(method: Callable[P, None]) -> Callable[P, None]:
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

    if isinstance(error, BrokenPipeError):
        raise error  # what reads the output, such as `head`, has seen enough
    if isinstance(error, OSError):
        return Stop(in_a_line(error))
    if isinstance(error, RecordError):
        return Stop(str(error))
    text = " ".join(str(error).split())
    return Stop(f"{type(error).__name__}{f': {text}' if text else ''} (HYDRA_FULL_ERROR=1 shows where)")


class PointsCallback(Callback):
    """Hydra's callback before and after all points of a command; a single run is one point.

    Attributes:
        began: the callback of this process's command, once all points are valid, so that runs may have been started.
        skipped: the overrides of the points that `skip` leaves out.
    """

    began: ClassVar[PointsCallback | None] = None
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
    def take(cls, config: Config) -> Any:
        """Return what was prepared for a point; it is prepared now if that was done in another process."""
        made = cls._prepared.pop(_key(config), None)
        return cls.prepare(config) if made is None else made

    def problems_together(self, points: list[Point]) -> list[str]:
        """Return what is wrong with valid points as points of one command."""
        return []

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        """React to the start of the command: all points are valid, and nothing has been started."""

    def end(self, config: DictConfig) -> None:
        """React to the end of the last point."""

    def show_finished(self) -> bool:
        """Show what is finished of a command that ends before its last point; return whether it is a sweep."""
        return False

    def close(self) -> None:
        """Close what the command left open, however it ended."""

    def dry_run(self, config: DictConfig, points: list[Composed]) -> None:
        """Show what the command would do and exit, if the command can; else nothing happens, and `prepare` refuses."""

    def read(self, composed: Composed, knobs: Knobs) -> Point | None:
        """Return a point, checked and prepared, and add its knobs; None if `skip` leaves it out.

        Raises:
            ConfigError: the point is invalid.
        """
        if composed.config is None:
            raise ConfigError(composed.problems)
        asked, lacking = read_composed(composed.config)
        if asked.skip:
            return None
        knobs.add(composed.overrides, asked, lacking)
        point = what_runs(asked)
        made = self._prepared[_key(point)] = self.prepare(point)
        return Point(composed.overrides, point, made)

    @stop_on_error
    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        words = typed_overrides(config)
        problems = word_problems(words)
        self._start(config, [Composed(words, None if problems else config, problems)])

    @stop_on_error
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            composed = compose_points(config)
        except REFUSED as error:
            refuse(refusal(error))
        if is_basic(config.hydra.sweeper) and launches_in_turn(config.hydra.launcher):
            config.hydra.sweeper.max_batch_size = 1  # else Hydra composes all points again before the first one
        self._start(config, composed)

    @stop_on_error
    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Remove the file in which Hydra repeats the whole command, secrets included; plan.json has it without them."""
        if is_sweep(config):
            (Path(config.hydra.sweep.dir) / "multirun.yaml").unlink(missing_ok=True)

    @stop_on_error
    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Release the point's configurations, which Hydra would keep until the last point has run."""
        job_return.cfg = job_return.hydra_cfg = None

    @stop_on_error
    def on_run_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    @stop_on_error
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        self.end(config)

    def _start(self, config: DictConfig, composed: list[Composed]) -> None:
        if any(node is not None and node.get("dry_run") for node in (config, *(each.config for each in composed))):
            self.dry_run(config, composed)
        points, skipped, problems, knobs = [], [], [], Knobs()
        for each in composed:
            try:
                point = self.read(each, knobs)
            except REFUSED as error:
                problems += refusal(error)
                continue
            if point is None:
                skipped.append(each.overrides)
            else:
                points.append(point)
        if composed and not points and not problems:
            refuse([NOTHING_LEFT])
        if problems := problems + knobs.problems + self.problems_together(points) or _folder_problem(config):
            refuse(list(dict.fromkeys(problems)))
        if speaks():
            for note in knobs.notes:
                console.note(note)
        log.debug("%s composed and checked", "1 point is" if len(points) == 1 else f"{len(points)} points are")
        self.skipped = skipped
        PointsCallback.began = self
        self.begin(config, points)


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


def launches_in_turn(launcher: DictConfig) -> bool:
    """Return whether a launcher runs the points of a sweep one after the other, as Hydra's own does."""
    return bool(launcher._target_.endswith(".BasicLauncher"))


def config_name() -> str:
    """Return the name of the running point's primary configuration: `config`, or that of a stored sweep."""
    return str(HydraConfig.get().job.config_name) if HydraConfig.initialized() else "config"


def overrides() -> list[str]:
    """Return the overrides of the running point as they were typed; none outside of a command."""
    if not HydraConfig.initialized():
        return []
    typed = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)  # as the plan has them
    assert isinstance(typed, list)
    return typed


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
    return not is_joined() or os.environ["RANK"] == "0"


def refuse(problems: Sequence[str]) -> NoReturn:
    """Print what has to be changed, and exit with code 2; nothing has been started."""
    if not is_joined() or os.environ["LOCAL_RANK"] == "0":  # each host may have problems of its own
        for problem in problems:
            console.error(fitted(problem))
    else:  # torchrun stops all ranks of a host as soon as one exits, so the one that speaks must be the first
        time.sleep(SILENT_S)
    raise SystemExit(BAD_INPUT)
