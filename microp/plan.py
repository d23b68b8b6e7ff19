"""`python -m microp.plan`: search the fastest plans within the ranks' memory. Options: `--help`."""

from __future__ import annotations

import sys

from microp.system import run_command


def main() -> None:
    from microp.commands import planning
    from microp.sweep import run_app

    sys.argv[1:] = planning.search_words(sys.argv[1:])
    run_app("plan", planning.run_plan)


if __name__ == "__main__":
    run_command(main)
