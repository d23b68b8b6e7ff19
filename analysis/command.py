"""The command line of one experiment: `python -m analysis.<name>`.

::

    outputs/ ── Store ── exhibits ──► outputs/report/<stem>.svg .png .csv
                                      the answer to the experiment's question
                                      and the commands of the points that have not been run
"""

from __future__ import annotations

import importlib
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import microp
from analysis import plot
from analysis.exhibit import Exhibit
from microp.records import RecordError, command
from microp.results import Store
from microp.system import CommandParser

OUTPUTS = Path("outputs")
WIDTH = 100  # of running text in the terminal, at most
SHOWN = 10  # commands in the terminal; the report has all of them
ANY_RUN = "python -m microp.run"
Exhibits = Callable[[Store], list[Exhibit]]


def main(name: str, exhibits: Exhibits, made_by: str | None = None, arguments: list[str] | None = None) -> int:
    """Write the exhibits of one section of the report and return the exit code, 2 if there is nothing to draw.

    `name` is the module's, and that of the experiment whose sweep it draws; `made_by` is the command that makes the
    runs, if they are not those of such a sweep.
    """
    about = "Write the figures and tables of this section into OUTPUTS/report."
    parser = command_parser(f"analysis.{name}", about, takes_outputs=True)
    options = parser.parse_args(arguments)
    store = open_store(options)
    try:
        made = exhibits(store)
    except RecordError as error:
        parser.error(str(error))
    if not made:
        parser.error(answer_of(name, store) or nothing(options.outputs, made_by or command(name)))
    save(made, options.outputs / "report")
    print_answer(answer_of(name, store))
    print_missing([command for exhibit in made[:1] for command in exhibit.missing])
    print_unreadable(store)
    return 0


def answer_of(name: str, store: Store) -> str:
    """Return the answer to the question of an experiment, or what is missing for one; empty if it has no runs.

    It is what the function `answer` of the experiment's module says: a few sentences, computed from the rows. What
    the answer needs is the module's NEEDS.
    """
    module = importlib.import_module(f"analysis.{name}")
    text: str = module.answer(store)
    needs = getattr(module, "NEEDS", "")  # what is over all runs has no question of its own
    if text or not needs or store.runs(name).empty:
        return text
    return (
        f"The finished runs do not answer the question yet: it needs {needs}. `{command(name)}` runs what is missing."
    )


def command_parser(module: str, about: str | None, takes_outputs: bool = False) -> CommandParser:
    """Return a parser for `python -m <module>` that knows `--version`, and if wanted the folder `outputs`."""
    parser = CommandParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--version", action="version", version=f"microp {microp.__version__}")
    if takes_outputs:
        told = "the folder that runs write to (default: outputs)"
        parser.add_argument("outputs", type=Path, nargs="?", default=OUTPUTS, help=told)
        add_choices(parser)
    return parser


def add_choices(parser: CommandParser) -> None:
    """Let a command take `--schedule`, which runs are drawn, and `--columns`, how wide."""
    parser.add_argument("--schedule", type=_names, default=(), help="only runs of these, as gpipe,1f1b")
    add_columns(parser)


def add_columns(parser: CommandParser) -> None:
    """Let a command take `--columns`, how wide its figures are."""
    wide = "the width of figures in columns of a paper (default: 2)"
    parser.add_argument("--columns", type=int, choices=(1, 2), default=2, help=wide)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def open_store(options: Namespace) -> Store:
    """Return the runs that the options of a command with `takes_outputs` ask for; figures get the width asked for."""
    plot.use_columns(options.columns)
    return Store(options.outputs, options.schedule)


def save(exhibits: Iterable[Exhibit], folder: Path) -> None:
    """Write the files of the exhibits into `folder` and print their paths, a line per exhibit."""
    for exhibit in exhibits:
        first, *others = exhibit.save(folder)
        print(first, *(file.suffix for file in others))


def print_answer(answer: str) -> None:
    """Print the answer to an experiment's question, if there is one."""
    if answer:
        print(textwrap.fill(answer, min(WIDTH, shutil.get_terminal_size().columns)))


def nothing(outputs: Path, command: str) -> str:
    """Return the error message for a folder that does not exist, or in which there is nothing to draw."""
    if not outputs.is_dir():
        return f"{absent(outputs)}: give the folder that runs write to, or make a run with `{command}`"
    return f"{outputs} holds no finished run to draw: make one with `{command}`"


def absent(folder: Path) -> str:
    """Return what is wrong with a path that is not a folder."""
    return f"{folder} is a file and not a folder" if folder.is_file() else f"there is no folder {folder}"


def print_missing(commands: list[str], not_started: Sequence[str] = ()) -> None:
    """Print the commands of the points that have not been run, and of the sweeps that were never started."""
    if commands:
        print(f"points not run yet, {len(commands)} (a sweep that is started again continues):")
        print("\n".join(f"  {command}" for command in commands[:SHOWN]))
    if len(commands) > SHOWN:
        print(f"  ... and {len(commands) - SHOWN} more")
    if not_started:
        print(f"sweeps not started, {len(not_started)} (quick parts; the page names the whole ones):")
        print("\n".join(f"  {command}" for command in not_started))


def print_unreadable(store: Store) -> None:
    """Print on standard error which runs are left out, and why."""
    for reason in store.unreadable:
        print(f"left out: {reason}", file=sys.stderr)
