"""Prints recorded runs as a table, newest first, or as CSV; deletes them after a question.

::

    3 of 206 runs in outputs with schedule=1f1b chunks>4, newest first
    when              run                   batch_size  step ms  p10 - p90    bubble  peak MiB
    2026-11-22 05:15  1f1b-m16-k2-f9b453f2         256     97.4  83.9 - 103.7  0.118      33.8
    ...
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from microp.job import NOT_ASKED
from microp.settings import RunOptions, size_text
from microp.store import (
    DISTURBANCES,
    Belongings,
    Runs,
    SelectionError,
    attempts,
    belongings,
    column_named,
    find,
    is_missing,
    is_running,
    nothing_found,
    read_groups,
    records,
    remove,
    shown,
    size_of,
    spelling,
    split_outside_brackets,
    swept,
    when,
)
from microp.terminal import columns, results, run_comparison
from microp.terminal.columns import Column, counted, number
from microp.terminal.console import error, note, out, warn
from microp.terminal.run_table import swept_columns

if TYPE_CHECKING:  # --help does without pandas
    import pandas as pd

_FIRST = ("schedule", "chunks", "ranks", "model", "checkpointing", "partition", "engine", "device", "batch_size")
_IN_ID = ("schedule", "chunks", "ranks", "replicas")  # the id of a run tells them
_KEY, _TOLD = 55, 30  # importance of keys, and of those that the id tells
ROWS = 20  # of a table, unless -n says otherwise
NAMED = 5  # failures and unreadable runs that are named below a table
MEANINGS = {**results.MEANINGS, "peak MiB": "peak MiB: as metered in one further step, of the rank that needs most."}


def answer(options: RunOptions) -> int:
    """List, compare or delete runs and return the exit code: 0; 1 if no run meets the filters; 2 for bad input."""
    limit = (0 if options.csv else ROWS) if options.limit is None else options.limit
    try:
        runs = find(options.words, options.all)
        if runs.rows.empty:
            error(nothing_found(runs))
            return 1
        if options.delete:
            return delete(runs, options.all, options.yes)
        if runs.unreadable and (options.compare or options.csv):
            count = len(runs.unreadable)
            warn(f"left out, {counted(count, 'attempt')} cannot be read: {runs.unreadable[0]}")
        names = split_outside_brackets(options.columns) if options.columns else []
        if options.compare:
            groups = read_groups(options.compare, runs)
            if not options.csv:
                run_comparison.show(*groups, limit)
                return 0
            figures = run_comparison.pairing_of(*groups).figures
            figures = figures[figures["pair"] < limit] if limit else figures
            write_csv(figures.drop(columns=["pair", "comparison"]), [])
        elif names == ["help"]:
            show_columns(runs.rows)
        elif options.csv:
            write_csv(runs.rows[: limit or None], names)
        else:
            show(runs, names, limit)
    except SelectionError as problem:
        error(str(problem))
        return 2
    return 0


def write_csv(rows: pd.DataFrame, names: Sequence[str]) -> None:
    """Write whole rows to standard output: the named columns, or all if none is named. Lists are written as JSON."""
    if names:
        chosen = [column_named(name, rows) for name in names]
        rows = rows[chosen].set_axis(list(names), axis="columns")
        rows = rows.assign(**{name: rows[name].map(when) for name in names if name == "when"})
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.columns)
    for row in rows.itertuples(index=False, name=None):
        writer.writerow(json.dumps(v) if isinstance(v, list) else "" if is_missing(v) else v for v in row)


def show_columns(rows: pd.DataFrame) -> None:
    """Print the name of every column, with its value in the newest run that has one."""
    for name in dict.fromkeys(map(spelling, map(str, rows))):
        column = column_named(name, rows)
        newest = next(iter(rows[column].dropna()), None)
        out.print(f"{name:32} {shown(newest, column)}", soft_wrap=True, markup=False)


def show(runs: Runs, names: Sequence[str], limit: int) -> None:
    """Print a table of at most `limit` runs (0: all) and what is to be said about them.

    Without `names` its columns are time, name, status, the keys that differ, and the main figures.
    """
    rows = runs.rows[: limit or None]
    chosen = [_column(name, rows[column_named(name, runs.all)]) for name in names] or _default(rows)
    states = ", ".join(f"{count} {status}" for status, count in runs.rows["status"].value_counts().items())
    of_all = f"{len(runs.rows)} of " if runs.filters else ""
    asked = " with " + " ".join(condition.text for condition in runs.filters) if runs.filters else ""
    total = counted(len(runs.all), "run")
    columns.paragraph(out, f"{of_all}{total} in {runs.folder}{asked}, newest first: {states}")
    printed = columns.show(out, chosen, "--csv")
    if more := len(runs.rows) - len(rows):
        out.print(f"{more} more: -n 0 shows all", style="dim")
    if not names:
        about = [MEANINGS[name] for name in printed if name in MEANINGS]
        turns = rows.get("config.engine.name"), rows.get("config.sync.name")
        about += [results.IN_TURN] * any(column is not None and "compare" in {*column} for column in turns)
        reasons = " ".join(filter(None, rows["disturbed"]))
        kinds = [f"{kind}: {meaning}" for kind, meaning in DISTURBANCES.items() if kind in reasons]
        columns.paragraph(out, " ".join([*about, *[f"disturbed: {'; '.join(kinds)}"] * bool(kinds)]))
    failed = rows.dropna(subset="message")
    for status, run, message in zip(failed["status"][:NAMED], failed["run_id"], failed["message"], strict=False):
        line = " ".join(f"{status}: {run}: {message}".split())
        out.print(line if len(line) <= out.width else line[: out.width - 1] + columns.CUT, soft_wrap=True, markup=False)
    if len(failed):
        columns.paragraph(out, "whole messages: --columns=run,message --csv")
    named = runs.unreadable[: NAMED if limit else None]
    for reason in named:
        columns.paragraph(out, f"left out: {reason}", "")
    if more := len(runs.unreadable) - len(named):
        out.print(f"{more} more cannot be read: -n 0 names them", style="dim")


def _column(name: str, values: pd.Series) -> Column:
    numbers = values.name != "started" and values.dropna().map(lambda value: isinstance(value, int | float)).all()
    texts = [shown(value, str(values.name)) for value in values]
    return Column(name, texts, "right" if numbers else "left", 0, None if numbers else 8)


def _default(rows: pd.DataFrame) -> list[Column]:
    """Return the columns of a listing without chosen ones: when and which, the keys that differ, and main figures."""
    asked = {column: column.removeprefix("config.") for column in map(str, rows) if column.startswith("config.")}
    asked = {column: key for column, key in asked.items() if key.partition(".")[0] not in NOT_ASKED}
    questions = [  # without the keys that an option does not have, which are NaN
        {key: value for key, value in question.items() if value is None or not is_missing(value)}
        for question in records(rows[list(asked)].rename(columns=asked))
    ]
    keys = swept_columns(swept(questions, _FIRST))
    figures = rows.reindex(columns=list(_FIGURES)).map(size_of)
    low, middle, high, bubble, peaks = (figures[name].tolist() for name in _FIGURES)
    return [
        Column("when", [when(started) for started in rows["started"]], "left", 50),
        Column("run", list(rows["run_id"]), "left", 100),
        *_if_told("attempt", [name.removeprefix("attempt-") for name in rows["attempt"]], "1"),
        *_if_told("status", list(rows["status"]), "finished"),
        *(replace(key, importance=_TOLD if key.name in _IN_ID else _KEY) for key in keys),
        Column("step ms", [_figure(value) for value in middle], importance=92),
        Column("p10 - p90", [f"{_figure(a)} - {_figure(b)}" for a, b in zip(low, high, strict=True)], importance=40),
        Column("bubble", [_figure(value, ".3f") for value in bubble], importance=80),
        *_if_told("disturbed", [text or "" for text in rows["disturbed"]], "", 12),
        Column("peak MiB", [_figure(value) for value in peaks], importance=80),
    ]


_FIGURES = ("step_ms.p10", "step_ms.median", "step_ms.p90", "bubble.measured", "peak_memory_mib")


def _if_told(name: str, values: Sequence[str], usual: str, shortest: int | None = None) -> Iterator[Column]:
    """Yield a column in which at least one value is not the usual one."""
    if set(values) - {usual}:
        yield Column(name, values, "left", 91, shortest)


def _figure(value: float, form: str = ".1f") -> str:
    return "-" if math.isnan(value) else format(value, form) if form == ".3f" else number(value, form)


# --- deleting -----------------------------------------------------------------------------------


def delete(runs: Runs, single: bool, yes: bool) -> int:
    """Delete runs and return the exit code: 0; 1 if not everything was deleted; 2 if there is nobody to ask.

    A row of `runs` stands for all attempts of its run, or if `single` for its attempt alone. With `yes`, do not ask.
    """
    doomed: dict[str, list[Belongings]] = {}
    for folder in map(Path, runs.rows["folder"]):
        siblings = [folder] if single else attempts(folder.parent)
        running = [attempt for attempt in siblings if is_running(attempt)]
        for attempt in running:
            note(f"kept, because it runs or may run: {attempt}")
        if not running:
            doomed.setdefault(folder.parent.name, []).extend(map(belongings, siblings))
    if not doomed:
        error("nothing to delete: all of these runs run")
        return 1
    flat = [attempt for run in doomed.values() for attempt in run]
    wandb = [sum(len(attempt.wandb) for attempt in run) for run in doomed.values()]
    sizes = [sum(attempt.size for attempt in run) for run in doomed.values()]
    numbers = [", ".join(attempt.attempt.name.removeprefix("attempt-") for attempt in run) for run in doomed.values()]
    table = [
        Column("run", list(doomed), "left", 100),
        Column("attempts", numbers),
        Column("W&B runs", list(map(str, wandb))),
        Column("size", list(map(size_text, sizes))),
    ]
    columns.show(out, table, "the run's folder")
    total = [counted(len(flat), "attempt"), counted(sum(wandb), "W&B run"), size_text(sum(sizes))]
    summary = f"{counted(len(doomed), 'run')} ({', '.join(total)})"
    if not yes:
        if not sys.stdin.isatty():
            error(f"nothing was deleted, because nobody can be asked here: add --yes to delete {summary}")
            return 2
        if input(f"delete {summary}? [y/N] ").strip().lower() not in ("y", "yes"):
            note("nothing was deleted")
            return 1
    try:
        left = [attempt.attempt for attempt in flat if not remove(attempt)]
    except OSError as problem:
        error(f"{problem}: what comes after it was not deleted")
        return 1
    for attempt in left:
        note(f"kept, because it has been started or deleted meanwhile: {attempt}")
    note(f"deleted {counted(len(flat) - len(left), 'attempt')}; a sweep that planned them runs them again")
    return 1 if left else 0
