"""Runs a command as a Hydra application, with different exit codes for bad input and for a failure.

::

    before the first point   Hydra refuses the input ──► one line per problem, exit code 2
    in a point               an exception ─────────────► traceback, exit code 1

With HYDRA_FULL_ERROR=1 in the environment, the traceback of a refusal is printed too.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hydra
from omegaconf import DictConfig

from microp.app import stored_sweeps, sweep, terminal
from microp.app.config import register_schemas
from microp.app.errors import ConfigError
from microp.app.hydra_callbacks import PointsCallback, refuse
from microp.app.hydra_problems import REFUSED, hydra_problems
from microp.app.places import CONF

FULL_ERROR = "HYDRA_FULL_ERROR"


def run_app(name: str, task: Callable[[DictConfig], Any]) -> None:
    """Let Hydra compose `conf/<name>.yaml` with the command line and call `task` for each point.

    Raises:
        SystemExit: 1 if a point failed, 2 for bad input, 130 after Ctrl-C.
    """

    @functools.wraps(task)
    def refusing(config: DictConfig) -> Any:
        try:
            return task(config)
        except ConfigError as error:
            refuse(error.problems)

    register_schemas()
    try:
        stored_sweeps.register()
        with _raising():
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(refusing)()
    except ConfigError as error:
        refuse(error.problems)
    except REFUSED as error:
        if PointsCallback.began:  # not the input: a point failed
            raise
        if os.environ.get(FULL_ERROR) == "1":
            traceback.print_exc()
        near = stored_sweeps.nearest(error)
        refuse([f"{problem}; {near}" if near else problem for problem in hydra_problems(error)])
    except KeyboardInterrupt:
        terminal.error("interrupted: what has been recorded is in the run's folder")
        raise SystemExit(130) from None
    finally:
        sweep.close()


@contextmanager
def _raising() -> Iterator[None]:
    """Let Hydra raise its errors; it would print several lines and exit."""
    asked = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        yield
    finally:
        if asked is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = asked
