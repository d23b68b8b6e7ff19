"""`python -m microp.simulate`: price a schedule and draw it. Options: `--help`."""

from __future__ import annotations

from microp.settings import run_command


def main() -> None:
    """Compose, check, price, show. Exit code 2 for bad input."""
    from microp import app

    app.run_app("simulate", app.run_price)


if __name__ == "__main__":
    run_command(main)
