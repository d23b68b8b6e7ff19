"""What `python -m analysis.<name>` does: one experiment's exhibits, and what is missing of them.

::

    outputs/ ── Store ── exhibits ──► outputs/report/<stem>.svg .png .csv
                                      the commands that make what is missing
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from analysis.exhibit import Exhibit
from analysis.store import Store

OUTPUTS = Path("outputs")
BAD_INPUT = 2
Exhibits = Callable[[Store], list[Exhibit]]


def main(name: str, exhibits: Exhibits, arguments: list[str] | None = None) -> int:
    """Write the exhibits of the experiment called `name`; exit code 2 if there is nothing to draw."""
    parser = argparse.ArgumentParser(prog=f"python -m analysis.{name}", description=main.__doc__)
    parser.add_argument("outputs", type=Path, nargs="?", default=OUTPUTS, help="what runs left (outputs)")
    options = parser.parse_args(arguments)
    store = Store(options.outputs)
    made = exhibits(store)
    if not made:
        commands = store.missing(name)
        parser.error(f"{options.outputs} holds no finished run of {name}: make them with `{commands[0]}`")
    for exhibit in made:
        for file in exhibit.save(options.outputs / "report"):
            print(file)
    print_missing(store.missing(name))
    return 0


def print_missing(commands: list[str]) -> None:
    """Say how to make what is not there."""
    if commands:
        print(f"{len(commands)} missing; each is made by its command:")
        print("\n".join(f"  {command}" for command in commands))
