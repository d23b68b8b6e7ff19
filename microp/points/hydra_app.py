"""Runs a command as a Hydra application: all its points are checked before the first one runs.

::

    Hydra ── on_..._start ──► every point composed, read, prepared ── one is bad ──► one line per problem, exit code 2
          ── task ──────────► point after point, each takes what was prepared for it
                              └─ the machine refuses something ──► the table so far, one line, exit code 1
          ── on_..._end ────► end

With HYDRA_FULL_ERROR=1 in the environment, or with hydra.verbose=true, tracebacks are printed too.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, ParamSpec

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from microp.config import (
    NOTHING_LEFT,
    REFUSED,
    Composed,
    Config,
    ConfigError,
    Knobs,
    RunError,
    Stop,
    compose_points,
    is_basic,
    key_page,
    log_traceback,
    lost_keys,
    plain,
    read_composed,
    read_config,
    refusal,
    register,
    sweep_page,
    tracebacks,
    typed_overrides,
    typed_words,
    what_runs,
    with_profiles,
    word_problems,
)
from microp.records import RecordError, in_a_line
from microp.system import CONF, is_joined, leave_reader, see_current_folder
from microp.terminal import console

FULL_ERROR = "HYDRA_FULL_ERROR"
BAD_INPUT = 2
NAMED = 4  # points of a problem
CALLBACK = "++hydra.callbacks.points._target_"
SILENT_S = 10  # the longest time that another rank of torchrun waits for rank 0 to print what is wrong, in seconds
log = logging.getLogger(__name__)
P = ParamSpec("P")


def run_app(name: str, task: Callable[[DictConfig], Any]) -> None:
    """Let Hydra compose `conf/<name>.yaml` with the command line and call a function for each point.

    Raises:
        SystemExit: 1 if a point failed, 2 for bad input, 130 after Ctrl-C.
    """
    see_current_folder()
    register(name)
    OmegaConf.register_new_resolver("key_page", key_page, replace=True)  # for --help
    OmegaConf.register_new_resolver("sweep_page", sweep_page, replace=True)
    _log_to_terminal()
    warnings.filterwarnings("ignore", "Callback .* raised BrokenPipeError")  # Hydra's, of a reader such as `head`
    warnings.filterwarnings("ignore", ".*Defaults list is missing `_self_`")  # it adds it at the end, as a file means
    # keys behind options: `KEY -m KEY` and `KEY -cd FOLDER KEY` are errors to argparse
    sys.argv[1:] = sorted(with_profiles(sys.argv[1:]), key=lambda word: "=" in word and word[0] != "-")
    if typed_words().config_name:  # a file that lacks the base lacks the callback that refuses it
        target = OmegaConf.load(CONF / f"{name}.yaml").hydra.callbacks.points._target_
        sys.argv.append(f"{CALLBACK}={target}")
    if problems := lost_keys():
        refuse(problems)
    asked = os.environ.get(FULL_ERROR, "0")
    os.environ[FULL_ERROR] = "1"  # Hydra raises its errors; it would print several lines and exit with code 1
    PointsCallback.began = None
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(_guarded(task))()
    except KeyboardInterrupt:
        _close()
        left = ": what has been recorded is in the run's folder; of a sweep the same command goes on"
        console.error(f"interrupted{left if name == 'config' else ''}")
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise  # to `run_command`
    except (Exception, Stop) as error:
        log_traceback(error)
        began = PointsCallback.began
        if isinstance(error, ConfigError) or (began is None and isinstance(error, REFUSED)):
            refuse(refusal(error))
        reason, was_open = str(error if isinstance(error, (RunError, Stop)) else stop_for(error)), _close()
        if isinstance(error, RunError):
            reason += " (the sweeper stopped; with hydra.sweeper.max_failure_rate=1 Optuna's goes on)"
        elif was_open:
            reason = f"the sweep stops: {reason}"
        console.error(reason)
        raise SystemExit(1) from None
    finally:
        _close()
        os.environ[FULL_ERROR] = asked


def _close() -> bool:
    """Close what the command has left open; return whether that is a sweep before its last point."""
    return PointsCallback.began is not None and PointsCallback.began.close()


def _guarded(task: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
    """Return the task that refuses bad input, and ends the command after any error that is not its point's alone."""

    def guarded(config: DictConfig) -> Any:
        try:
            return task(config)
        except ConfigError as error:
            if not chooses_points():
                refuse(error.problems)
            for problem in error.problems:
                console.warn(problem)
            raise  # the sweeper's trial fails
        except RunError:
            raise
        except BrokenPipeError:
            raise SystemExit(leave_reader()) from None  # of an error Hydra would print the overrides
        except Exception as error:
            raise stop_for(error) from error

    return guarded


def _log_to_terminal() -> None:
    """Show what Hydra and microp log: all with `hydra.verbose=true`, tracebacks alone with HYDRA_FULL_ERROR=1."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(relativeCreated)6.0f ms  %(name)s  %(message)s"))
    for name in ("hydra", "microp"):
        logging.getLogger(name).handlers = [handler]
    if os.environ.get(FULL_ERROR) == "1":
        tracebacks.setLevel(logging.DEBUG)


# --- the points of a command --------------------------------------------------------------------------


class Point(NamedTuple):
    """One point of a command."""

    overrides: list[str]  # the overrides that were typed for it
    config: Config  # the configuration that Hydra composed
    made: Any  # the result of `PointsCallback.prepare`: a job or a pricing job


Checked = Point | Composed  # a valid point, or one as it was composed with what is wrong with it


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
    if isinstance(error, BrokenPipeError):
        raise error  # what reads the output, such as `head`, has seen enough
    if isinstance(error, OSError):
        return Stop(in_a_line(error))
    if isinstance(error, RecordError):
        return Stop(str(error))
    text = " ".join(str(error).split())
    return Stop(f"{type(error).__name__}{f': {text}' if text else ''} (HYDRA_FULL_ERROR=1 shows where)")


class PointsCallback(Callback):
    """Hydra's callback before and after all points of a command; a single run is one point."""

    began: ClassVar[PointsCallback | None] = None  # this process's, once all points are valid, so that runs may begin
    skipped: Sequence[list[str]] = ()  # the overrides of the points that `skip` leaves out
    refused: Sequence[Composed] = ()  # the points that are not valid
    in_part = False  # whether the command goes on with its valid points where others are not
    _prepared: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        sys.argv[1:] = [word for word in sys.argv[1:] if not word.startswith(CALLBACK)]  # recorded is what was typed

    @classmethod
    def prepare(cls, config: Config) -> Any:
        """Check a point and return what its task needs, or raise ConfigError."""
        raise NotImplementedError

    @classmethod
    def take(cls, config: Config) -> Any:
        """Return what was prepared for a point; it is prepared now if that was done in another process."""
        made = cls._prepared.pop(_key(config), None)
        return cls.prepare(config) if made is None else made

    @classmethod
    def task(cls, run: Callable[[Any, Any], Any]) -> Callable[[DictConfig], Any]:
        """Return Hydra's task: a point's configuration, and what was prepared for it, are given to a function."""

        def task(node: DictConfig) -> Any:
            config = read_config(node)
            return run(config, cls.take(config))

        return task

    def problems_together(self, config: DictConfig, points: list[Point]) -> list[str]:
        """Return what is wrong with valid points as points of one command."""
        return []

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        """React to the start of the command: all points are valid, and nothing has been started."""

    def end(self, config: DictConfig) -> None:
        """React to the end of the last point."""

    def close(self) -> bool:
        """Close what the command has left open, and show what is finished of a sweep before its last point.

        Returns:
            whether it is one; False when this is called again.
        """
        return False

    def dry_run(self, config: DictConfig, checked: list[Checked]) -> None:
        """Show what the command would do with its points."""

    def check(self, composed: Composed, knobs: Knobs) -> Checked | None:
        """Check and prepare a point, and add its knobs; None if `skip` leaves it out."""
        try:
            if composed.config is None:
                return composed
            if "skip" in composed.config and composed.config.skip:  # `get` raises errors without the key
                return None
            asked, lacking = read_composed(composed.config)
            knobs.add(asked, lacking)
            config = what_runs(asked)
            made = self._prepared[_key(config)] = self.prepare(config)
            return Point(composed.overrides, config, made)
        except REFUSED as error:
            return Composed(composed.overrides, None, refusal(error))

    @stop_on_error
    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        words = typed_overrides(config.hydra.overrides)
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

    on_multirun_end = on_run_end

    def _start(self, config: DictConfig, composed: list[Composed]) -> None:
        knobs = Knobs()
        every = [(asked.overrides, self.check(asked, knobs)) for asked in composed]
        checked = [point for _, point in every if point is not None]
        self.skipped = [overrides for overrides, point in every if point is None]
        if composed and not checked:
            refuse([NOTHING_LEFT])
        points = [point for point in checked if isinstance(point, Point)]
        problems = knobs.problems + self.problems_together(config, points)
        if speaks():
            for note in knobs.notes:
                console.note(note)
        nodes = (config, *(asked.config for asked in composed))
        is_dry = any(node is not None and node.get("dry_run") for node in nodes)
        if is_dry and not problems:  # else no point is to run
            self.dry_run(config, checked)
        self.refused = [point for point in checked if isinstance(point, Composed)]
        if self.refused and points and self.in_part and not problems:
            for problem in _by_points(self.refused, composed):
                console.error(problem)
        elif problems := [problem for point in self.refused for problem in point.problems] + problems:
            refuse(list(dict.fromkeys(problems)))
        if is_dry:
            raise SystemExit(0)
        log.debug("%s composed and checked", "1 point is" if len(points) == 1 else f"{len(points)} points are")
        PointsCallback.began = self
        self.begin(config, points)


def _by_points(refused: Sequence[Composed], composed: Sequence[Composed]) -> Iterator[str]:
    """Yield each problem of some points of a sweep once, after the words that tell these points from the others."""
    same = set.intersection(*(set(point.overrides) for point in composed))
    places: dict[str, list[str]] = {}
    for point in refused:
        for problem in point.problems:
            places.setdefault(problem, []).append(" ".join(word for word in point.overrides if word not in same))
    for problem, names in places.items():
        more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"{', '.join(names[:NAMED])}{more}: {problem}"


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
    return str(HydraConfig.get().job.config_name)


def overrides() -> list[str]:
    """Return the overrides of the running point as they were typed."""
    return typed_overrides(HydraConfig.get().overrides)


def chooses_points() -> bool:
    """Return whether the running point was chosen by a sweeper that learns from the points before it, as Optuna's."""
    return sweep_folder() is not None and not is_basic(HydraConfig.get().sweeper)


def runs_beside_others() -> bool:
    """Return whether the running point's launcher runs several points of the sweep at the same time."""
    return sweep_folder() is not None and not launches_in_turn(HydraConfig.get().launcher)


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
            console.error(problem)
    else:  # torchrun stops all ranks of a host as soon as one exits, so the one that speaks must be the first
        time.sleep(SILENT_S)
    raise SystemExit(BAD_INPUT)
