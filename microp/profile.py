"""`python -m microp.profile`: measure the times of a model's layers, for predictions. Options: `--help`."""

from __future__ import annotations

from microp.settings import run_command


def main() -> None:
    """Compose, check, measure, write. Exit code 2 for bad input."""
    from microp import app

    app.run_app("profile", app.run_profile)


if __name__ == "__main__":
    run_command(main)
