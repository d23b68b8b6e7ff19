"""Lists recorded runs, newest first; compares or deletes them: the task of `python -m microp.runs`."""

from __future__ import annotations

from microp.terminal import read_run_options


def main(arguments: list[str] | None = None) -> int:
    """List recorded runs, newest first; compare or delete them."""
    options = read_run_options(str(main.__doc__), arguments)
    from microp.terminal import run_list  # after --help, which does without pandas

    return run_list.answer(options)
