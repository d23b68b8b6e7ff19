"""`python -m microp.runs`: lists recorded runs, newest first; compares or deletes them."""

from __future__ import annotations

from microp.system import run_command
from microp.terminal import read_run_options


def main(arguments: list[str] | None = None) -> int:
    """List, compare or delete recorded runs."""
    options = read_run_options(str(__doc__).partition(": ")[2], arguments)
    from microp.terminal import run_list  # after --help, which does without pandas

    return run_list.answer(options)


if __name__ == "__main__":
    run_command(main)
