"""`python -m microp.run`: one run, or with `-m` a sweep. Options: `--help`.

Every rank process imports this module by name, so it must not import anything heavy.
"""

from __future__ import annotations


def main() -> None:
    """Compose, check, run, show. Exit code 1 if a run failed, 2 for bad input, 130 after Ctrl-C."""
    from microp.system import run_command

    run_command(_run)


def _run() -> None:
    from microp.points import run_app, run_point

    run_app("config", run_point)


if __name__ == "__main__":
    main()
