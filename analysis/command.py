"""The command line of one experiment: `python -m analysis.<name>`.

::

    outputs/ ── Store ── exhibits ──► outputs/report/<stem>.svg .png .csv
                                      and the commands of the points that have not been run
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from analysis.exhibit import Exhibit
from microp.store import RecordError, Store

OUTPUTS = Path("outputs")
SHOWN = 10  # commands in the terminal; the report has all of them
ANY_RUN = "python -m microp.run"
Exhibits = Callable[[Store], list[Exhibit]]


def main(name: str, exhibits: Exhibits, made_by: str | None = None, arguments: list[str] | None = None) -> int:
    """Write the exhibits of one section of the report and return the exit code, 2 if there is nothing to draw.

    Args:
        name: name of the module, and of the experiment whose sweep it draws.
        exhibits: the module's function of that name.
        made_by: the command that makes the runs, if they are not those of a sweep called `name`.
        arguments: the arguments of the command line.
    """
    about = "Write the figures and tables of this section into OUTPUTS/report."
    parser = argparse.ArgumentParser(prog=f"python -m analysis.{name}", description=about)
    parser.add_argument(
        "outputs", type=Path, nargs="?", default=OUTPUTS, help="the folder that runs write to (default: outputs)"
    )
    options = parser.parse_args(arguments)
    store = Store(options.outputs)
    try:
        made = exhibits(store)
    except RecordError as error:
        parser.error(str(error))
    if not made:
        parser.error(nothing(options.outputs, made_by or store.missing(name)[0]))
    save(made, options.outputs / "report")
    print_missing([command for exhibit in made[:1] for command in exhibit.missing])
    print_unreadable(store)
    return 0


def save(exhibits: Iterable[Exhibit], folder: Path) -> None:
    """Write the files of the exhibits into `folder` and print their paths."""
    for exhibit in exhibits:
        for file in exhibit.save(folder):
            print(file)


def nothing(outputs: Path, command: str) -> str:
    """Return the error message for a folder in which there is nothing to draw."""
    return f"{outputs} holds no finished run to draw: make one with `{command}`"


def print_missing(commands: list[str], not_started: Sequence[str] = ()) -> None:
    """Print the commands of the points that have not been run, and of the sweeps that were never started."""
    if commands:
        print(f"points not run yet, {len(commands)} (a sweep that is started again continues):")
        print("\n".join(f"  {command}" for command in commands[:SHOWN]))
    if len(commands) > SHOWN:
        print(f"  ... and {len(commands) - SHOWN} more")
    if not_started:
        print(f"sweeps not started, {len(not_started)}:")
        print("\n".join(f"  {command}" for command in not_started))


def print_unreadable(store: Store) -> None:
    """Print on standard error which runs are left out, and why."""
    for reason in store.unreadable:
        print(f"left out: {reason}", file=sys.stderr)
