"""`python -m microp.plan`: search the fastest plans within the ranks' memory. Options: `--help`."""

from __future__ import annotations

import sys

from microp.settings import run_command


def main() -> None:
    """Compose, check, search, show. Exit code 2 for bad input."""
    from microp import app

    sys.argv[1:] = app.search_words(sys.argv[1:])
    app.run_app("plan", app.run_plan)


if __name__ == "__main__":
    run_command(main)
