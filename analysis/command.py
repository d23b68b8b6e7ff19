"""What `python -m analysis.<name>` does: one experiment's exhibits, and what is missing of them.

::

    outputs/ ── Store ── exhibits ──► outputs/report/<stem>.svg .png .csv
                                      the commands that make what is missing
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from analysis.exhibit import Exhibit
from analysis.store import Store

OUTPUTS = Path("outputs")
SHOWN = 10  # commands in the terminal; the report has all
ANY_RUN = "python -m microp.run"
Exhibits = Callable[[Store], list[Exhibit]]


def main(name: str, exhibits: Exhibits, made_by: str | None = None, arguments: list[str] | None = None) -> int:
    """Write the exhibits of one part of the report; exit code 2 if there is nothing to draw.

    Args:
        name: of the module, and of the experiment whose sweep it draws.
        exhibits: the module's.
        made_by: a command that makes what is drawn, where that is no sweep called `name`.
        arguments: of the command line.
    """
    about = "Write these exhibits into OUTPUTS/report."
    parser = argparse.ArgumentParser(prog=f"python -m analysis.{name}", description=about)
    parser.add_argument("outputs", type=Path, nargs="?", default=OUTPUTS, help="what runs left (outputs)")
    options = parser.parse_args(arguments)
    store = Store(options.outputs)
    made = exhibits(store)
    if not made:
        parser.error(nothing(options.outputs, made_by or store.missing(name)[0]))
    save(made, options.outputs / "report")
    print_missing([command for exhibit in made[:1] for command in exhibit.missing])
    return 0


def save(exhibits: Iterable[Exhibit], folder: Path) -> None:
    """Write the files of exhibits into `folder`, and print their names."""
    for exhibit in exhibits:
        for file in exhibit.save(folder):
            print(file)


def nothing(outputs: Path, command: str) -> str:
    """What to say where there is nothing to draw."""
    return f"{outputs} holds no finished run of it: make one with `{command}`"


def print_missing(commands: list[str]) -> None:
    """Say how to make what is not there."""
    if commands:
        print(f"not run yet, {len(commands)} in all; a sweep that is typed again goes on where it stopped:")
        print("\n".join(f"  {command}" for command in commands[:SHOWN]))
    if len(commands) > SHOWN:
        print(f"  ... and {len(commands) - SHOWN} more")
