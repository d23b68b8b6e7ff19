"""Runs a command as a Hydra application, with different exit codes for bad input and for a failure.

::

    before the first point   Hydra refuses the input ──────► one line per problem, exit code 2
    in a point               the machine refuses something ► the table so far, one line, exit code 1

With HYDRA_FULL_ERROR=1 in the environment, the traceback is printed too.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import hydra
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from microp.app import stored_sweeps
from microp.app.config import register_schemas, with_profiles
from microp.app.errors import ConfigError, RunError, Stop
from microp.app.hydra_callbacks import PointsCallback, chooses_points, refuse, speaks, stop_for
from microp.app.hydra_internals import check_options, typed_options
from microp.app.hydra_problems import REFUSED, given_twice, hydra_problems
from microp.app.interrupts import signal_came, watched
from microp.app.places import CONF
from microp.terminal import console

FULL_ERROR = "HYDRA_FULL_ERROR"


def run_app(name: str, task: str) -> None:
    """Let Hydra compose `conf/<name>.yaml` with the command line and call a function of `microp.app` for each point.

    Args:
        name: the primary configuration.
        task: the function's name; it is imported for the first point, since --help and TAB do without it.

    Raises:
        SystemExit: 1 if a point failed, 2 for bad input, 130 after Ctrl-C.
    """
    register_schemas()
    _log_to_terminal()
    sys.argv[1:] = with_profiles(sys.argv[1:])
    try:
        check_options()
        for text in given_twice(typed_options().overrides) if speaks() else ():
            console.note(text)
        stored_sweeps.register()
        with watched(), raising():
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(_guard(task))()
    except RunError as error:
        console.error(f"{error} (the sweeper stopped; with hydra.sweeper.max_failure_rate=1 Optuna's goes on)")
        raise SystemExit(1) from None
    except Stop as stop:
        _end(stop)
    except REFUSED as error:
        if PointsCallback.began and not isinstance(error, ConfigError):  # not the input: a point failed
            _end(stop_for(error))
        _show_traceback()
        near = stored_sweeps.nearest(error)
        refuse([f"{problem}; {near}" if near else problem for problem in _problems(error)])
    except OSError as error:  # Hydra's own files; a configuration that Hydra does not find is an OSError too, see above
        _end(stop_for(error))
    except KeyboardInterrupt:
        console.error("interrupted: what has been recorded is in the run's folder")
        raise SystemExit(130) from None
    finally:
        if (sweep := _sweep()) is not None:
            sweep.end()


def _guard(task: str) -> Callable[[DictConfig], Any]:
    """Return the task that refuses bad input, and ends the command after any other error."""

    def guarded(config: DictConfig) -> Any:
        if signal_came():
            raise KeyboardInterrupt
        try:
            return getattr(import_module("microp.app"), task)(config)
        except ConfigError as error:
            if not chooses_points():
                refuse(error.problems)
            for problem in error.problems:
                console.warn(problem)
            raise  # the sweeper's trial fails
        except RunError:
            raise
        except Exception as error:
            raise stop_for(error) from error

    return guarded


def _end(stop: Stop) -> NoReturn:
    """Print what has been finished, then why nothing follows."""
    _show_traceback()
    sweep = _sweep()
    console.error(f"{'the sweep stops: ' if sweep is not None and sweep.show_finished() else ''}{stop}")
    raise SystemExit(1)


def _sweep() -> Any:
    """Return the module of runs and sweeps; None if nothing has imported it, as for --help and TAB, which run none."""
    return sys.modules.get("microp.app.sweep")


def _show_traceback() -> None:
    if os.environ.get(FULL_ERROR) == "1":
        traceback.print_exc()


def _problems(error: Exception) -> list[str]:
    """Return why Hydra cannot compose a command's configuration, and what else is wrong with it."""
    rests = error.rests if isinstance(error, ConfigError) else []
    callback = OmegaConf.select(rests[0].config, "hydra.callbacks.points._target_") if rests else None
    return get_class(callback).all_problems(error) if callback else hydra_problems(error)  # type: ignore[attr-defined]


def _log_to_terminal() -> None:
    """Show what Hydra and microp log, which is something only with `hydra.verbose=true`."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(relativeCreated)6.0f ms  %(name)s  %(message)s"))
    for name in ("hydra", "microp"):
        logging.getLogger(name).addHandler(handler)


def came_of_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C met Hydra or omegaconf at work, and what was half made gave an error."""
    cause = error.__cause__ if isinstance(error, Stop) else error
    return signal_came() and not isinstance(cause, (RunError, ConfigError, OSError))  # these are said in any case


@contextmanager
def raising() -> Iterator[None]:
    """Let Hydra raise its errors; it would print several lines and exit."""
    asked = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        yield
        if signal_came():
            raise KeyboardInterrupt
    except (Exception, SystemExit) as error:  # a sweep with a point that failed exits
        if came_of_interrupt(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        if asked is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = asked
