"""The command of one section of the report: `python -m analysis.<name>`.

::

    outputs/ ── Store ── section ──► outputs/report/<stem>.svg .png .csv
                                     the answer to the experiment's question
                                     and the commands of the points that have not been run
"""

from __future__ import annotations

import importlib
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import microp
from analysis import plot
from analysis.exhibit import Exhibit, Section
from microp.records import RecordError, command
from microp.results import Store
from microp.system import CommandParser, run_command, sweep_names
from microp.terminal import read_store

OUTPUTS = Path("outputs")
WIDTH = 100  # of running text in the terminal, at most
SHOWN = 3  # commands in the terminal; the report has all of them
ANY_RUN = "python -m microp.run"
OVER_ALL_RUNS = ("prediction", "rank_time")  # the modules that are no experiment


def run(module: str) -> None:
    """Run the command of a module, of which its file is given, and end with its exit code."""
    run_command(lambda: main(Path(module).stem))


def main(name: str) -> int:
    """Write the exhibits of one section of the report and return the exit code, 2 if there is nothing to draw."""
    about = "Write the figures and tables of this section into OUTPUTS/report."
    parser = command_parser(f"analysis.{name}", about, takes_outputs=True)
    options = parser.parse_args()
    store = read_store(options.outputs, options.schedule)
    own = None if name in OVER_ALL_RUNS else {point.run_id for point in store.points(name)}
    check_schedules(parser, options.outputs, options.schedule, store.schedules_of(own))
    folder = figures_in(options.outputs / "report", options)
    try:
        made = section(name, store)
    except RecordError as error:
        parser.error(str(error))
    if not made.exhibits:
        parser.error(made.answer or nothing(options.outputs, ANY_RUN if own is None else command(_quick(name))))
    save(made.exhibits, folder)
    print_answer(made.answer)
    print_missing(made.missing)
    print_unreadable(store)
    return 0


def _quick(name: str) -> str:
    return f"{name}_quick" if f"{name}_quick" in sweep_names() else name


def section(name: str, store: Store) -> Section:
    """Return the section of the report that the module `name` draws.

    Its `prepared` makes of the runs what `exhibits` draws, and what `answer` says in a few sentences. An experiment is
    about the runs of the sweep of its name; its NEEDS says what the answer needs.
    """
    module, is_experiment = importlib.import_module(f"analysis.{name}"), name not in OVER_ALL_RUNS
    runs = store.runs(name if is_experiment else None)
    given = [] if runs.empty else module.prepared(runs)
    exhibits = [exhibit for exhibit in module.exhibits(given) if exhibit] if len(given) else []
    answer = module.answer(given) if len(given) else ""
    if is_experiment and not answer and not runs.empty:
        left, quick = "The finished runs do not answer the question yet", command(_quick(name))
        remedy = f" `{quick}` runs what is missing."
        if store.schedules:
            left, remedy = f"--schedule={','.join(store.schedules)} leaves too few runs to answer the question", ""
        answer = f"{left}: it needs {module.NEEDS}.{remedy}"
    title, missing = str(module.__doc__).splitlines()[0].rstrip("."), store.missing(name) if is_experiment else []
    return Section(name, title, answer, exhibits, missing, not is_experiment or bool(store.points(name)))


def command_parser(module: str, about: str | None, takes_outputs: bool = False) -> CommandParser:
    """Return a parser for `python -m <module>` with `--version` and `--columns`, and if wanted the folder `outputs`."""
    parser = CommandParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--version", action="version", version=f"microp {microp.__version__}")
    wide = "the width of figures in columns of a paper; 1 also fits a phone (default: 2)"
    parser.add_argument("--columns", type=int, choices=(1, 2), default=2, help=wide)
    if takes_outputs:
        told = "the folder that runs write to (default: outputs)"
        parser.add_argument("outputs", type=Path, nargs="?", default=OUTPUTS, help=told)
        add_schedule(parser)
    return parser


def add_schedule(parser: CommandParser) -> None:
    """Let a command take `--schedule`: which runs are drawn."""
    told = "only runs of these, as gpipe,1f1b: in a folder of their own, as report/only-1f1b-gpipe"
    parser.add_argument("--schedule", type=lambda text: text.split(","), action="extend", default=[], help=told)


def read_report(parser: CommandParser, arguments: list[str] | None) -> tuple[Namespace, Path]:
    """Let a command take `--report`; return its options, and the folder that its files go to."""
    told = "folder for the files (default: outputs/report)"
    parser.add_argument("--report", type=Path, default=OUTPUTS / "report", help=told)
    options = parser.parse_args(arguments)
    return options, figures_in(options.report, options)


def figures_in(folder: Path, options: Namespace) -> Path:
    """Set the width of the figures to one or two columns of a page, and return their folder; parts have their own."""
    plot.WIDTH = plot.ONE_COLUMN if options.columns == 1 else plot.TWO_COLUMNS
    only: list[str] = sorted({*getattr(options, "schedule", [])})
    return folder / "-".join(["only" * bool(only), *only]) / ("one-column" if options.columns == 1 else "")


def save(exhibits: Iterable[Exhibit], folder: Path) -> None:
    """Write the files of the exhibits into `folder` and print their paths, a line per exhibit."""
    for exhibit in exhibits:
        first, *others = exhibit.save(folder)
        print(first, *(file.suffix for file in others))


def print_answer(answer: str) -> None:
    """Print the answer to an experiment's question, if there is one."""
    if answer:
        print(textwrap.fill(answer, min(WIDTH, shutil.get_terminal_size().columns)))


def check_schedules(parser: CommandParser, outputs: Path, wanted: Sequence[str], known: Collection[str]) -> None:
    """End the command if one of the schedules that are wanted has no finished run, but others, those `known`, have."""
    if known and (unknown := [name for name in wanted if name not in known]):
        parser.error(f"{outputs} holds no finished run of schedule={','.join(unknown)}: there are {', '.join(known)}")


def nothing(outputs: Path, command: str) -> str:
    """Return the error message for no folder or no runs to draw."""
    if not outputs.is_dir():
        return f"{absent(outputs)}: give the folder that runs write to, or make a run with `{command}`"
    return f"{outputs} holds no finished run of what this draws: make one with `{command}`"


def absent(folder: Path) -> str:
    """Return what is wrong with a path that is not a folder."""
    return f"{folder} is a file and not a folder" if folder.is_file() else f"there is no folder {folder}"


def print_missing(commands: Sequence[str], not_started: Sequence[str] = ()) -> None:
    """Print the commands of the points that have not been run, and of the sweeps that were never started."""
    if commands:
        more = [f"... and {len(commands) - SHOWN} more"] * (len(commands) > SHOWN)
        print(f"points not run yet, {len(commands)} (a sweep that is started again continues):")
        print("\n".join(f"  {each}" for each in [*commands[:SHOWN], *more]))
    if not_started:
        print(f"sweeps not started, {len(not_started)} (quick parts; the page names the whole ones):")
        print("\n".join(f"  {command}" for command in not_started))


def print_unreadable(store: Store) -> None:
    """Print on standard error which runs are left out, and why."""
    for reason in store.unreadable:
        print(f"left out: {reason}", file=sys.stderr)
