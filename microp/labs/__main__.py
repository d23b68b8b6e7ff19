"""`python -m microp.labs 7 chunks=32` runs a lab of the course, and without a number lists them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from microp.labs import LABS
from microp.system import CommandParser, run_command

WIDTH = 79


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run a lab of the course by its number or name, with the words of that lab; without one, list them."""
    lab, *words = (sys.argv[1:] if arguments is None else arguments) or [""]
    numbers = dict(enumerate(LABS, start=1))
    if lab in ("", "-h", "--help"):
        about = textwrap.fill(str(main.__doc__), WIDTH)
        print(f"usage: python -m microp.labs [NUMBER or NAME [KEY=VALUE ...]]\n\n{about}\n")
        for number, name in numbers.items():
            start = f"{number:2}  {name:16} "
            print(textwrap.fill(LABS[name], WIDTH, initial_indent=start, subsequent_indent=" " * len(start)))
        if lab:
            raise SystemExit(0)
        return 0
    name = numbers.get(int(lab), "") if lab.isdecimal() else lab
    if name not in LABS:
        CommandParser(prog="python -m microp.labs").error(
            f"{lab} is not a lab: use 1 to {len(LABS)} or {', '.join(LABS)}"
        )
    import_module(f"microp.labs.{name}").main(words)
    return 0


if __name__ == "__main__":
    run_command(main)
