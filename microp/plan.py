"""`python -m microp.plan`: search the fastest plans within the ranks' memory. Options: `--help`."""

from __future__ import annotations

import sys

from microp.settings import run_command


def main() -> None:
    """Compose, check, search, show. Exit code 2 for bad input."""
    from microp.app import answer_version

    answer_version()
    from microp.app import run_app, search_words, see_current_folder

    see_current_folder()
    sys.argv[1:] = search_words(sys.argv[1:])
    run_app("plan", "run_plan")


if __name__ == "__main__":
    run_command(main)
