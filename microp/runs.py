"""`python -m microp.runs`: lists recorded runs, newest first; compares, deletes or archives them."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """List, compare, delete or archive recorded runs."""
    from microp.app import answer_version
    from microp.settings import read_run_options

    answer_version()
    options = read_run_options(str(__doc__).partition(": ")[2], arguments)
    from microp.terminal import console, run_list

    try:
        return run_list.answer(options)
    except BrokenPipeError as error:
        if not console.is_unread(error):
            raise
        return 0


if __name__ == "__main__":
    sys.exit(main())
