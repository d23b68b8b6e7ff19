"""`python -m microp.order`: search for an order under a memory cap, and write it as a schedule file."""

from __future__ import annotations

from microp.settings import run_command


def main() -> None:
    """Compose, check, search, show. Exit code 2 for bad input."""
    from microp.app import answer_version

    answer_version()
    from microp.app import run_app, see_current_folder

    see_current_folder()
    run_app("order", "run_order")


if __name__ == "__main__":
    run_command(main)
