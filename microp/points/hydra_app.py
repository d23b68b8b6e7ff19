"""Runs a command as a Hydra application, with different exit codes for bad input and for a failure.

::

    before the first point   the input is refused ──────────► one line per problem, exit code 2
    in a point               the machine refuses something ─► the table so far, one line, exit code 1

With HYDRA_FULL_ERROR=1 in the environment, or with hydra.verbose=true, tracebacks are printed too.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from microp.config import (
    REFUSED,
    ConfigError,
    RunError,
    Stop,
    key_page,
    log_traceback,
    refusal,
    register,
    sweep_page,
    tracebacks,
    with_profiles,
)
from microp.points.hydra_callbacks import PointsCallback, chooses_points, refuse, stop_for
from microp.system import CONF, leave_reader, see_current_folder
from microp.terminal import console

FULL_ERROR = "HYDRA_FULL_ERROR"


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
    # keys behind options: `KEY -m KEY` and `KEY -cd FOLDER KEY` are errors to argparse
    sys.argv[1:] = sorted(with_profiles(sys.argv[1:]), key=lambda word: "=" in word and word[0] != "-")
    asked = os.environ.get(FULL_ERROR, "0")
    os.environ[FULL_ERROR] = "1"  # Hydra raises its errors; it would print several lines and exit with code 1
    PointsCallback.began = None
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(_guarded(task))()
    except KeyboardInterrupt:
        if PointsCallback.began is not None:
            PointsCallback.began.show_finished()
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
        reason = str(error if isinstance(error, (RunError, Stop)) else stop_for(error))
        if isinstance(error, RunError):
            reason += " (the sweeper stopped; with hydra.sweeper.max_failure_rate=1 Optuna's goes on)"
        elif began is not None and began.show_finished():
            reason = f"the sweep stops: {reason}"
        console.error(reason)
        raise SystemExit(1) from None
    finally:
        if PointsCallback.began is not None:
            PointsCallback.began.close()
        os.environ[FULL_ERROR] = asked


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
