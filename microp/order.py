"""`python -m microp.order`: search for an order under a memory cap, and write it as a schedule file."""

from __future__ import annotations

from microp.settings import run_command


def main() -> None:
    """Compose, check, search, show. Exit code 2 for bad input."""
    from microp import app

    app.run_app("order", app.run_order)


if __name__ == "__main__":
    run_command(main)
