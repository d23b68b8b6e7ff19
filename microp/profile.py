"""`python -m microp.profile`: measure the times of a model's layers, for predictions. Options: `--help`."""

from __future__ import annotations

from microp.system import run_command


def main() -> None:
    from microp.commands import profiling
    from microp.sweep import run_app

    run_app("profile", profiling.run_profile)


if __name__ == "__main__":
    run_command(main)
