"""`python -m microp.run`: one run, or with `-m` a sweep. Options: `--help`.

Every rank process imports this module by name, so that nothing heavy is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main() -> None:
    """Compose, check, run, show. Exit code 1 if a run failed, 2 for bad input, 130 after Ctrl-C."""
    from microp import sweep

    run_hydra("config", sweep.run)


def run_hydra(name: str, task: Callable[[DictConfig], Any]) -> None:
    """Let Hydra compose `conf/<name>.yaml` with the command line and call `task` for each point."""
    import hydra

    from microp import config, points, sweep, terminal
    from microp.app import stored_sweeps

    config.register_schemas()
    try:
        stored_sweeps.register(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(config.CONF), config_name=name)(task)()
    except config.ConfigError as error:
        points.refuse(error.problems)
    except SystemExit as stop:
        # Hydra ends with 1 for what it cannot compose, too: nothing has been started then.
        bad_input = stop.code == 1 and not points.PointsCallback.began
        raise SystemExit(points.BAD_INPUT if bad_input else stop.code) from None
    except KeyboardInterrupt:
        terminal.error("interrupted: what has been recorded is in the run's folder")
        raise SystemExit(130) from None
    finally:
        sweep.close()


if __name__ == "__main__":
    main()
