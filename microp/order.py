"""`python -m microp.order`: search for an order under a memory cap, and write it as a schedule file."""

from __future__ import annotations

from microp.settings import run_command


def main() -> None:
    """Compose, check, search, show. Exit code 2 for bad input."""
    from microp import app

    app.answer_version()
    app.see_current_folder()
    app.run_app("order", lambda config: app.run_order(config))  # imported for the first point: --help does without it


if __name__ == "__main__":
    run_command(main)
