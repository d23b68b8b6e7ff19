"""`python -m microp.runs`: lists recorded runs, newest first, and compares two groups of them."""

from __future__ import annotations

import argparse
import os
import sys

EPILOG = """\
A filter is key=value, key=a,b (either), key!=value, 'key>4', 'key>=4',
'key<4' or 'key<=4'. Without quotes chunks>4 would write a file named 4. A key
is one of the configuration (model.dim), a group (schedule), a number of
summary.json (step_ms), or status, run, when, experiment, commit; all are
listed by --columns=help. Of a list with a number per rank the largest counts.

  python -m microp.runs schedule=1f1b 'chunks>4' status=failed
  python -m microp.runs 'when>2026-11-22 05:10' --columns=run,model.dim,step_ms
  python -m microp.runs 'chunks>=4' --compare schedule=1f1b schedule=gpipe
exit code: 0; 1 if no run meets the filters; 2 for bad input"""


def main(arguments: list[str] | None = None) -> int:
    """List or compare recorded runs."""
    from microp.app import answer_version
    from microp.settings import CommandParser

    answer_version()
    parser = CommandParser(
        prog="python -m microp.runs",
        description=__doc__.partition(": ")[2],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="word", help="a folder of runs (default: outputs), and filters")
    parser.add_argument("--columns", default="", help="the columns to show, joined by commas; help lists all")
    parser.add_argument("--csv", action="store_true", help="whole rows as CSV, with the chosen columns or all")
    parser.add_argument("--all", action="store_true", help="all attempts, not only the newest finished one of each run")
    parser.add_argument("-n", "--limit", type=int, help="at most so many rows (default: 20, of CSV all); 0 for all")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="runs, folders, or filters joined by commas")
    options = parser.parse_intermixed_args(arguments)
    if (options.limit or 0) < 0:
        parser.error(f"--limit {options.limit} is less than 0: use 0 for all rows")
    if options.compare and (options.columns or options.all):
        parser.error("--compare has its own columns and takes one attempt of each run: leave out --columns and --all")
    from microp.terminal import run_list

    try:
        return run_list.answer(run_list.Options(**vars(options)))
    except BrokenPipeError:  # the reader, for example head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
