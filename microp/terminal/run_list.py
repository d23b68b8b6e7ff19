"""Prints recorded runs as a table, newest first, or as CSV.

::

    3 of 206 runs in outputs with schedule=1f1b chunks>4, newest first
    when              run                   batch_size  step ms  p10 - p90    bubble  peak MiB
    2026-11-22 05:15  1f1b-m16-k2-f9b453f2         256     97.4  83.9 - 103.7  0.118      33.8
    ...
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TextIO

from microp.job import NOT_ASKED
from microp.settings import RunOptions
from microp.store import (
    DISTURBANCES,
    Row,
    SelectionError,
    column_named,
    columns_of,
    is_missing,
    list_attempts,
    list_runs,
    shown,
    spelling,
    split_outside_brackets,
    tell_apart,
    when,
)
from microp.terminal import columns, results, run_comparison
from microp.terminal.columns import Column
from microp.terminal.console import error, out, warn
from microp.terminal.figure_text import number
from microp.terminal.question_text import question_column
from microp.terminal.run_search import Found, find, nothing_found, read_groups
from microp.terminal.run_table import swept_columns
from microp.terminal.run_tidy import tidy
from microp.terminal.swept import swept

_FIRST = ("schedule", "chunks", "ranks", "model", "checkpointing", "partition", "engine", "device", "batch_size")
_KEY, _REST = 90, 30  # importance of keys that tell rows apart, and of the others
_IN_ID = ("schedule", "chunks", "ranks", "replicas")  # the id of a run tells them
ROWS = 20  # of a table, unless -n says otherwise
NAMED = 5  # failures and unreadable runs that are named below a table
MEANINGS = {**results.MEANINGS, "peak MiB": "peak MiB: as metered in one further step, of the rank that needs most."}


def answer(options: RunOptions) -> int:
    """List, compare or tidy runs and return the exit code: 0, or 1 if no run meets the filters, or 2 for bad input."""
    limit = (0 if options.csv else ROWS) if options.limit is None else options.limit
    try:
        found = find(options.words, list_attempts if options.all else list_runs)
        if not found.rows:
            error(nothing_found(found))
            return 1
        if options.delete or options.archive is not None:
            return tidy(found, options.all, options.archive, options.yes)
        if found.unreadable and (options.compare or options.csv):
            count = len(found.unreadable)
            warn(f"left out, {count} attempt{'' if count == 1 else 's'} cannot be read: {found.unreadable[0]}")
        if options.compare:
            groups = read_groups(options.compare, found)
            if options.csv:
                run_comparison.write_csv(*groups, limit, sys.stdout)
            else:
                run_comparison.show(*groups, limit)
            return 0
        names = split_outside_brackets(options.columns) if options.columns else []
        if names == ["help"]:
            show_columns(found.rows)
        elif options.csv:
            write_csv(found.rows[: limit or None], names, sys.stdout)
        else:
            show(found, names, limit)
    except SelectionError as problem:
        error(str(problem))
        return 2
    return 0


def write_csv(rows: Sequence[Row], names: Sequence[str], stream: TextIO) -> None:
    """Write whole rows as CSV: the named columns, or all columns if none is named. Lists are written as JSON."""
    known = columns_of(rows)
    chosen = {name: column_named(name, known) for name in names} if names else {name: name for name in known}
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(chosen)
    for row in rows:
        writer.writerow(
            when(row[column]) if name == "when" else _whole(row.get(column)) for name, column in chosen.items()
        )


def _whole(value: Any) -> Any:
    return "" if is_missing(value) else json.dumps(value) if isinstance(value, list) else value


def show_columns(rows: Sequence[Row]) -> None:
    """Print the name of every column, with its value in the newest run that has one."""
    known = columns_of(rows)
    for name in dict.fromkeys(map(spelling, known)):
        column = column_named(name, known)
        newest = next((row for row in rows if not is_missing(row.get(column))), {})
        out.print(f"{name:32} {shown(newest, column)}", soft_wrap=True, markup=False)


def show(found: Found, names: Sequence[str], limit: int) -> None:
    """Print a table of runs and what is to be said about them.

    Args:
        found: the runs.
        names: the columns; none: time, name, status, the keys that differ, and the main figures.
        limit: the most rows that are printed; 0 for all.
    """
    rows = found.rows[: limit or None]
    if names:
        chosen, meaning = _chosen(rows, names, columns_of(found.all)), ""
    else:
        chosen, meaning = _default(rows)
    columns.paragraph(out, _heading(found))
    printed = columns.show(out, chosen, "--csv")
    if more := len(found.rows) - len(rows):
        out.print(f"{more} more: -n 0 shows all", style="dim")
    if not names:
        about = [MEANINGS[name] for name in printed if name in MEANINGS]
        if any("compare" in (row.get("config.engine.name"), row.get("config.sync.name")) for row in rows):
            about.append(results.IN_TURN)
        columns.paragraph(out, " ".join([*about, meaning]).strip())
        kinds = [kind for kind in DISTURBANCES if any(kind in (row["disturbed"] or "") for row in rows)]
        if "disturbed" in printed:
            columns.paragraph(out, "disturbed: " + "; ".join(f"{kind}: {DISTURBANCES[kind]}" for kind in kinds))
    _show_failed([f"{row['status']}: {row['run_id']}: {row['message']}" for row in rows if row.get("message")])
    named = found.unreadable[: NAMED if limit else None]
    for reason in named:
        columns.paragraph(out, f"left out: {reason}", "")
    if more := len(found.unreadable) - len(named):
        out.print(f"{more} more cannot be read: -n 0 names them", style="dim")


def _heading(found: Found) -> str:
    number = f"{len(found.rows)} of " if found.filters else ""
    states = Counter(row["status"] for row in found.rows)
    state = ", ".join(f"{count} {status}" for status, count in states.most_common())
    asked = " with " + " ".join(each.text for each in found.filters) if found.filters else ""
    number += "1 run" if len(found.all) == 1 else f"{len(found.all)} runs"
    return f"{number} in {found.folder}{asked}, newest first: {state}"


def _show_failed(messages: Sequence[str]) -> None:
    """Print one line for each of the first messages, cut where the terminal ends."""
    for message in messages[:NAMED]:
        line = " ".join(message.split())
        out.print(line if len(line) <= out.width else line[: out.width - 1] + columns.CUT, soft_wrap=True, markup=False)
    if messages:
        columns.paragraph(out, "whole messages: --columns=run,message --csv")


def _chosen(rows: Sequence[Row], names: Sequence[str], known: Sequence[str]) -> list[Column]:
    chosen = [(name, column_named(name, known)) for name in names]
    return [_column(name, [shown(row, column) for row in rows], rows, column) for name, column in chosen]


def _column(name: str, values: list[str], rows: Sequence[Row], column: str, importance: int = 0) -> Column:
    numbers = all(isinstance(row.get(column), int | float) or is_missing(row.get(column)) for row in rows)
    numbers = numbers and column != "started"
    return Column(name, values, "right" if numbers else "left", importance, None if numbers else 8)


def _default(rows: Sequence[Row]) -> tuple[list[Column], str]:
    """Return the columns of a listing without chosen ones, and what its column `question` means, if it has one.

    There is a column per key that differs, or one for all of them if they have no room.
    """
    keys = swept(list(map(_question, rows)), _FIRST)
    own, figures = list(_about_runs(rows)), list(_figures(rows))
    few = tell_apart({key: keys[key] for key in sorted(keys, key=lambda key: (key not in _IN_ID, "." in key))})
    told = {key: keys[key] for key in few if key not in _IN_ID}  # together with the id they tell the rows apart
    of_keys = [replace(each, importance=_KEY if each.name in told else _REST) for each in swept_columns(keys)]
    whole = [*own, *of_keys, *figures]
    if not told.keys() & columns.fit(whole, out.width).left_out:
        return whole, ""
    groups = [key for key in told if any(f"config.{key}.name" in row for row in rows)]
    column, meaning = question_column(told, groups, _KEY)
    return [*own, column, *(each for each in of_keys if each.name not in told), *figures], meaning


def _about_runs(rows: Sequence[Row]) -> Iterator[Column]:
    """Yield the columns of when and how the runs ran; what is left out first has the lowest importance."""
    yield Column("when", [when(row["started"]) for row in rows], "left", 50)
    yield Column("run", [row["run_id"] for row in rows], "left", 100)
    if any(row["attempt"] != "attempt-1" for row in rows):
        yield Column("attempt", [row["attempt"].removeprefix("attempt-") for row in rows], "right", 95)
    if any(row["status"] != "finished" for row in rows):
        yield Column("status", [row["status"] for row in rows], "left", 95)


def _figures(rows: Sequence[Row]) -> Iterator[Column]:
    yield Column("step ms", [_time(row.get("step_ms.median")) for row in rows], importance=92)
    yield Column("p10 - p90", [_range(row) for row in rows], importance=40)
    yield Column("bubble", [_fraction(row.get("bubble.measured")) for row in rows], importance=80)
    if any(row["disturbed"] for row in rows):
        yield Column("disturbed", [row["disturbed"] or "" for row in rows], "left", 91, 12)
    peaks = [row.get("peak_memory_mib") for row in rows]
    yield Column("peak MiB", [number(max(peak), ".1f") if peak else "-" for peak in peaks], importance=60)


def _question(row: Row) -> dict[str, Any]:
    """Return the part of a row's configuration that is asked, and the launch; where and how it ran is left out."""
    keys = {column.removeprefix("config."): value for column, value in row.items() if column.startswith("config.")}
    return {key: value for key, value in keys.items() if key.partition(".")[0] not in NOT_ASKED}


def _time(value: float | None) -> str:
    return "-" if value is None or is_missing(value) else number(value, ".1f")


def _fraction(value: float | None) -> str:
    return "-" if value is None or is_missing(value) else format(value, ".3f")


def _range(row: Row) -> str:
    low, high = row.get("step_ms.p10"), row.get("step_ms.p90")
    return "-" if low is None or high is None else f"{_time(low)} - {_time(high)}"
