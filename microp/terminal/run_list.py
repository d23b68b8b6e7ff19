"""Lists recorded runs as a table, newest first, or as CSV; compares them; deletes them after a question.

::

    3 of 206 runs in outputs with schedule=1f1b chunks>4, newest first
    when         run                   batch_size  step ms  p10 - p90    bubble  peak MiB
    11-22 05:15  1f1b-m16-k2-f9b453f2         256     97.4  83.9 - 103.7  0.118      33.8
    ...
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from microp import results
from microp.job import NOT_ASKED
from microp.mirror import remove
from microp.records import attempts
from microp.system import CommandParser
from microp.terminal import run_comparison
from microp.terminal.columns import CUT, Column, counted, paragraph, show
from microp.terminal.console import error, note, out, warn
from microp.terminal.run_table import result_columns, swept_columns

if TYPE_CHECKING:  # --help does without pandas
    import pandas as pd

_FIRST = ("schedule", "chunks", "ranks", "model", "checkpointing", "partition", "engine", "device", "batch_size")
_IN_ID = ("schedule", "chunks", "ranks", "replicas")  # the id of a run tells them
ROWS = 20  # of a table, unless -n says otherwise
NAMED = 5  # failures and unreadable runs that are named below a table
SHOWN = ("step ms", "p10 - p90", "disturbed", "bubble", "peak MiB", "status")  # of the results of a run
EPILOG = """\
A filter is key=value, key=a,b (either), key!=value, 'key>4', 'key>=4',
'key<4' or 'key<=4'. Without quotes chunks>4 would write a file named 4. A key
is one of the configuration (model.dim), a group (schedule), a number of
summary.json (step_ms), or status, run, when, experiment, commit; all are
listed by --columns=help. Of a list with a number per rank the largest counts.

  python -m microp.runs schedule=1f1b 'chunks>4' disturbed=false
  python -m microp.runs 'when>2026-11-22 05:10' --columns=run,model.dim,step_ms
  python -m microp.runs 'chunks>=4' --compare schedule=1f1b schedule=gpipe
  python -m microp.runs status=failed,killed --delete

--delete removes the runs with all their attempts (with --all: the attempts
that are listed) and their W&B files on this disk. A run that runs is kept.
exit code: 0; 1 if no run meets the filters; 2 for bad input"""


def main(arguments: list[str] | None = None) -> int:
    """List, compare or delete runs and return the exit code: 0; 1 if no run meets the filters; 2 for bad input.

    Raises:
        SystemExit: 2 for options that are wrong or exclude each other, 0 after `--help`.
    """
    options = _read_options(arguments)
    limit = (0 if options.csv else ROWS) if options.limit is None else options.limit
    try:
        runs = results.find(options.words, options.all)
        if runs.rows.empty:
            error(results.nothing_found(runs))
            return 1
        if options.delete:
            return delete(runs, options.all, options.yes)
        if runs.unreadable and (options.compare or options.csv):
            warn(f"left out, {counted(len(runs.unreadable), 'attempt')} cannot be read: {runs.unreadable[0]}")
        names = results.split_outside_brackets(options.columns) if options.columns else []
        if options.compare and options.csv:
            figures = run_comparison.pairing_of(*results.read_groups(options.compare, runs)).figures
            figures = figures[figures["pair"] < limit] if limit else figures
            _write_csv(figures.drop(columns=["pair", "comparison"]))
        elif options.compare:
            run_comparison.show_comparison(*results.read_groups(options.compare, runs), limit)
        elif names == ["help"]:
            for name in dict.fromkeys(map(results.spelling, map(str, runs.rows))):
                column = results.column_named(name, runs.rows)
                newest = next(iter(runs.rows[column].dropna()), None)
                out.print(f"{name:32} {results.shown(newest, column)}", soft_wrap=True, markup=False)
        elif options.csv:
            chosen = [results.column_named(name, runs.rows) for name in names] or list(map(str, runs.rows))
            rows = runs.rows.loc[:, chosen][: limit or None].set_axis(names or chosen, axis="columns")
            _write_csv(rows.assign(when=rows["when"].map(results.when)) if "when" in rows else rows)
        else:
            show_list(runs, names, limit)
    except results.SelectionError as problem:
        error(str(problem))
        return 2
    return 0


def _read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m microp.runs",
        description="List recorded runs, newest first; compare or delete them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="word", help="a folder of runs (default: outputs), and filters")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--columns", default="", help="the columns to show, joined by commas; help lists all")
    parser.add_argument("--csv", action="store_true", help="whole rows as CSV, with the chosen columns or all")
    parser.add_argument("--all", action="store_true", help="all attempts, not only the newest finished one of each run")
    parser.add_argument("-n", "--limit", type=int, help="how many rows (default: 20, with --csv all of them; 0: all)")
    task.add_argument("--compare", nargs=2, metavar=("A", "B"), help="runs, folders, or filters joined by commas")
    task.add_argument("--delete", action="store_true", help="delete the runs, after a question")
    parser.add_argument("--yes", action="store_true", help="delete without the question")
    options = parser.parse_intermixed_args(arguments)
    if (options.limit or 0) < 0:
        parser.error(f"--limit {options.limit} is less than 0: use 0 for all rows")
    if options.compare and options.all:
        parser.error("--compare takes one attempt of each run: leave out --all")
    if options.delete and (options.csv or options.limit is not None):
        parser.error("--delete takes all runs that meet the filters: leave out --csv and -n")
    if options.delete and not any(sign in word for word in options.words for sign in "=<>"):
        parser.error("--delete needs a filter: write for example status=failed; 'chunks>0' takes all runs")
    return options


def _write_csv(rows: pd.DataFrame) -> None:
    """Write rows to standard output; lists are written as JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.columns)
    for row in rows.itertuples(index=False, name=None):
        writer.writerow(json.dumps(v) if isinstance(v, list) else "" if results.is_missing(v) else v for v in row)


def show_list(runs: results.Runs, names: Sequence[str], limit: int) -> None:
    """Print a table of at most `limit` runs (0: all) and what is to be said about them.

    Without `names` its columns are time, name, status, the keys that differ, and the main figures.
    """
    rows = runs.rows[: limit or None]
    points = [results.recorded_point(runs.nested[folder]) for folder in rows["folder"]]
    chosen = [_column(name, rows[results.column_named(name, runs.all)]) for name in names] or [
        *_runs(rows),
        *(column for column in result_columns(points) if column.name in SHOWN),
        *_differing(points),
    ]
    states = ", ".join(f"{count} {status}" for status, count in runs.rows["status"].value_counts().items())
    of_all = f"{len(runs.rows)} of " if runs.filters else ""
    asked = " with " + " ".join(condition.text for condition in runs.filters) if runs.filters else ""
    total = counted(len(runs.all), "run")
    paragraph(f"{of_all}{total} in {runs.folder}{asked}, newest first: {states}")
    show(chosen, "--csv")
    if more := len(runs.rows) - len(rows):
        out.print(f"{more} more: -n 0 shows all", style="dim")
    failed = rows.dropna(subset="message")
    for status, run, message in zip(failed["status"][:NAMED], failed["run_id"], failed["message"], strict=False):
        line = " ".join(f"{status}: {run}: {message}".split())
        out.print(line if len(line) <= out.width else line[: out.width - 1] + CUT, soft_wrap=True, markup=False)
    if len(failed):
        paragraph("whole messages: --columns=run,message --csv")
    named = runs.unreadable[: NAMED if limit else None]
    for reason in named:
        paragraph(f"left out: {reason}", "")
    if more := len(runs.unreadable) - len(named):
        out.print(f"{more} more cannot be read: -n 0 names them", style="dim")


def _column(name: str, values: pd.Series) -> Column:
    numbers = values.name != "started" and values.dropna().map(lambda value: isinstance(value, int | float)).all()
    texts = [results.shown(value, str(values.name)) for value in values]
    return Column(name, texts, "right" if numbers else "left", 0, None if numbers else 8)


def _runs(rows: pd.DataFrame) -> Iterator[Column]:
    """Yield the columns that tell runs apart."""
    yield Column("when", [results.when(started, "%m-%d %H:%M") for started in rows["started"]], "left", 60)
    yield Column(
        "run", list(rows["run_id"]), "left", 100, is_key=True, about="run: schedule, m chunks, k ranks, r replicas."
    )
    if {*rows["attempt"]} != {"attempt-1"}:
        yield Column("attempt", [name.removeprefix("attempt-") for name in rows["attempt"]], "left", 91, is_key=True)


def _differing(points: Sequence[results.PointRow]) -> Iterator[Column]:
    """Yield the keys that differ, for which there is room beside the main results, if need be without the time."""
    configs = [{key: value for key, value in point.config.items() if key not in NOT_ASKED} for point in points]
    for key in swept_columns(results.swept(configs, _FIRST)):
        if key.name not in _IN_ID and not key.name.endswith(".builder"):
            yield replace(key, importance=70)


def delete(runs: results.Runs, single: bool, yes: bool) -> int:
    """Delete runs and return the exit code: 0; 1 if not everything was deleted; 2 if there is nobody to ask.

    A row of `runs` stands for all attempts of its run, or if `single` for its attempt alone. With `yes`, do not ask.
    """
    folders = map(Path, runs.rows["folder"])
    doomed = [attempt for folder in folders for attempt in ([folder] if single else attempts(folder.parent))]
    show_list(runs, (), 0)
    summary = f"{counted(len(doomed), 'attempt')}, with W&B's files of them on this disk, but none that runs or may run"
    if not yes and not sys.stdin.isatty():
        error(f"nothing was deleted, because nobody can be asked here: add --yes to delete {summary}")
        return 2
    if not yes and input(f"delete {summary}? [y/N] ").strip().lower() not in ("y", "yes"):
        note("nothing was deleted")
        return 1
    try:
        left = [attempt for attempt in doomed if not remove(attempt)]
    except OSError as problem:
        error(f"{problem}: what comes after it was not deleted")
        return 1
    for attempt in left:
        note(f"kept, because its run runs or may run: {attempt}")
    note(f"deleted {counted(len(doomed) - len(left), 'attempt')}; a sweep that planned them runs them again")
    return 1 if left else 0
