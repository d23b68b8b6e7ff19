"""The options of `python -m microp.runs`, and which of them exclude each other."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from microp.system import CommandParser

EPILOG = """\
A filter is key=value, key=a,b (either), key!=value, 'key>4', 'key>=4',
'key<4' or 'key<=4'. Without quotes chunks>4 would write a file named 4. A key
is one of the configuration (model.dim), a group (schedule), a number of
summary.json (step_ms), or status, run, when, experiment, commit; all are
listed by --columns=help. Of a list with a number per rank the largest counts.

  python -m microp.runs schedule=1f1b 'chunks>4' status=failed
  python -m microp.runs 'when>2026-11-22 05:10' --columns=run,model.dim,step_ms
  python -m microp.runs 'chunks>=4' --compare schedule=1f1b schedule=gpipe
  python -m microp.runs status=failed,killed --delete

--delete removes the runs with all their attempts (with --all: the attempts
that are listed) and their W&B files on this disk. A run that runs is kept.
exit code: 0; 1 if no run meets the filters; 2 for bad input"""


class RunOptions(NamedTuple):
    """What `python -m microp.runs` is asked; its help explains the options."""

    words: list[str]
    columns: str
    csv: bool
    all: bool
    limit: int | None
    compare: list[str] | None
    delete: bool
    yes: bool


def read_run_options(about: str, arguments: list[str] | None) -> RunOptions:
    """Return the options of a command line; None stands for that of this process.

    Raises:
        SystemExit: 2 for options that are wrong, 0 after `--help`.
    """
    parser = CommandParser(
        prog="python -m microp.runs",
        description=about,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="word", help="a folder of runs (default: outputs), and filters")
    parser.add_argument("--columns", default="", help="the columns to show, joined by commas; help lists all")
    parser.add_argument("--csv", action="store_true", help="whole rows as CSV, with the chosen columns or all")
    parser.add_argument("--all", action="store_true", help="all attempts, not only the newest finished one of each run")
    parser.add_argument("-n", "--limit", type=int, help="at most so many rows (default: 20, of CSV all); 0 for all")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="runs, folders, or filters joined by commas")
    parser.add_argument("--delete", action="store_true", help="delete the runs, after a question")
    parser.add_argument("--yes", action="store_true", help="delete without the question")
    options = RunOptions(**vars(parser.parse_intermixed_args(arguments)))
    if problem := _problem(options):
        parser.error(problem)
    return options


def _problem(options: RunOptions) -> str | None:
    """Return which options do not go together; None if all do."""
    if (options.limit or 0) < 0:
        return f"--limit {options.limit} is less than 0: use 0 for all rows"
    if options.compare and (options.columns or options.all):
        return "--compare has its own columns and takes one attempt of each run: leave out --columns and --all"
    if options.yes and not options.delete:
        return "--yes answers the question of --delete: add --delete"
    if options.delete and (options.compare or options.columns or options.csv or options.limit is not None):
        return "--delete takes all runs that meet the filters: leave out --compare, --columns, --csv, -n"
    if options.delete and not any(sign in word for word in options.words for sign in "=<>"):
        return "--delete needs a filter: write for example status=failed; 'chunks>0' takes all runs"
    return None
