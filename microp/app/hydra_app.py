"""Runs a command as a Hydra application, with different exit codes for bad input and for a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hydra
from omegaconf import DictConfig

from microp.app import stored_sweeps, sweep, terminal
from microp.app.config import register_schemas
from microp.app.errors import ConfigError
from microp.app.hydra_callbacks import BAD_INPUT, PointsCallback, refuse
from microp.app.places import CONF


def run_app(name: str, task: Callable[[DictConfig], Any]) -> None:
    """Let Hydra compose `conf/<name>.yaml` with the command line and call `task` for each point.

    Raises:
        SystemExit: 1 if a point failed, 2 for bad input, 130 after Ctrl-C.
    """
    register_schemas()
    try:
        stored_sweeps.register()
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)()
    except ConfigError as error:
        refuse(error.problems)
    except SystemExit as stop:
        # Hydra also exits with 1 if it cannot compose the configuration; nothing has been started then.
        bad_input = stop.code == 1 and not PointsCallback.began
        if near := stored_sweeps.nearest(stop.__context__):
            terminal.note(near)
        raise SystemExit(BAD_INPUT if bad_input else stop.code) from None
    except KeyboardInterrupt:
        terminal.error("interrupted: what has been recorded is in the run's folder")
        raise SystemExit(130) from None
    finally:
        sweep.close()
