"""`python -m microp.run`: one run, or with `-m` a sweep. Options: `--help`.

Every rank process imports this module by name, so that nothing heavy is imported here.
"""

from __future__ import annotations


def main() -> None:
    """Compose, check, run, show. Exit code 1 if a run failed, 2 for bad input, 130 after Ctrl-C."""
    import hydra

    from microp import config, sweep, terminal

    config.register_schemas()
    task = hydra.main(version_base="1.3", config_path=str(config.CONF), config_name="config")(sweep.run)
    try:
        task()
    except SystemExit as stop:
        # Hydra ends with 1 for what it cannot compose, too: nothing has been started then.
        composed = sweep.board.is_open
        raise SystemExit(sweep.BAD_INPUT if stop.code == 1 and not composed else stop.code) from None
    except KeyboardInterrupt:
        sweep.board.close()
        terminal.error("interrupted: what has been recorded is in the run's folder")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
