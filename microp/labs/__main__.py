"""`python -m microp.labs`: prints the course's labs in their order, each with its command."""

from __future__ import annotations

import textwrap

from microp.labs import LABS
from microp.system import CommandParser, run_command

WIDTH = 79


def main(arguments: list[str] | None = None) -> int:
    """List the labs of the course in their order; each is a command of its own."""
    parser = CommandParser(prog="python -m microp.labs", description=main.__doc__)
    parser.add_argument("lab", nargs="?", help=f"one of {', '.join(LABS)}: only its line")
    asked = parser.parse_args(arguments).lab
    if asked not in (None, *LABS):
        parser.error(f"{asked} is not a lab: use one of {', '.join(LABS)}")
    for number, (name, lesson) in enumerate(LABS.items(), start=1):
        if asked in (None, name):
            start = f"{number}  python -m microp.labs.{name:16} "
            print(textwrap.fill(lesson, WIDTH, initial_indent=start, subsequent_indent=" " * len(start)))
    return 0


if __name__ == "__main__":
    run_command(main)
