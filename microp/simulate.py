"""`python -m microp.simulate`: price a schedule and draw it. Options: `--help`."""

from __future__ import annotations

from microp.settings import run_command


def main() -> None:
    """Compose, check, price, show. Exit code 2 for bad input."""
    from microp import app

    app.answer_version()
    app.see_current_folder()
    app.run_app(
        "simulate", lambda config: app.run_price(config)
    )  # imported for the first point: --help does without it


if __name__ == "__main__":
    run_command(main)
