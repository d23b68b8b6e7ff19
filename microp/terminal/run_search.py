"""Finds the runs that the words of `python -m microp.runs` mean: a folder and filters, or two groups to compare.

::

    outputs schedule=1f1b 'chunks>4'             ─► the runs in outputs that meet both filters
    --compare 1f1b-m4-k2-1f5e3a7b 55b3113b       ─► two runs, by id, or by the start or the end of it
    --compare schedule=1f1b,chunks=4 outputs/b   ─► the runs that meet two filters, and all runs of a folder
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from microp.store import (
    Filter,
    Row,
    SelectionError,
    column_named,
    columns_of,
    list_runs,
    read_filters,
    select,
    shown,
    size_of,
)
from microp.terminal.console import note, warn

FEW = 8  # values of a key that a message lists


class Found(NamedTuple):
    """The runs of a folder that meet the filters.

    Attributes:
        folder: where they were looked for.
        filters: what they meet.
        all: the rows of all runs there, newest first.
        rows: those that meet the filters.
        unreadable: why runs cannot be read, one sentence each.
    """

    folder: Path
    filters: list[Filter]
    all: list[Row]
    rows: list[Row]
    unreadable: list[str]


def find(words: Sequence[str], read: Callable[[Path], tuple[list[Row], list[str]]] = list_runs) -> Found:
    """Return the runs that the words of a command line ask for.

    Args:
        words: filters, and at most one folder (else: outputs).
        read: `list_runs` or `list_attempts`.

    Raises:
        SelectionError: a word is neither a folder nor a filter, the filter names no column, or there are no runs.
    """
    folders = [Path(word) for word in words if Path(word).is_dir()]
    filters = [each for word in words if not Path(word).is_dir() for each in read_filters(word)]
    if len(folders) > 1:
        raise SelectionError(f"{folders[0]} and {folders[1]} are two folders: give one, or compare them with --compare")
    folder = folders[0] if folders else Path("outputs")
    if not folder.is_dir():
        raise SelectionError("there is no folder outputs here: give the folder with your runs as the first word")
    rows, unreadable = read(folder)
    if not rows:
        if not unreadable:
            raise SelectionError(f"{folder} holds no runs: make one with python -m microp.run")
        for reason in unreadable[:FEW]:
            note(f"left out: {reason}")
        several = "its only attempt is" if len(unreadable) == 1 else f"all {len(unreadable)} attempts are"
        raise SelectionError(f"{folder} holds no run that can be read, {several} damaged: run again")
    return Found(folder, filters, rows, select(rows, filters), unreadable)


def nothing_found(found: Found) -> str:
    """Return why no run meets the filters: the values that there are, or how many runs each filter lets pass."""
    number = f"none of the {len(found.all)} runs in {found.folder}"
    for each in found.filters:
        if not select(found.all, [each]):
            column = column_named(each.name, columns_of(found.all))
            return f"{number} has {each.text}; {each.name} is {_values(found.all, column)}"
    alone = ", ".join(f"{each.text} ({len(select(found.all, [each]))})" for each in found.filters)
    return f"{number} meets all filters; each alone: {alone}"


def _values(rows: Sequence[Row], column: str) -> str:
    """Return the values of a column: a few with their counts, or of many numbers the least and the largest."""
    known = Counter(shown(row, column) for row in rows)
    sizes = [(size, row) for row in rows if (size := size_of(row.get(column))) is not None]
    if len(known) > FEW and sizes:
        least, largest = (shown(choose(sizes, key=itemgetter(0))[1], column) for choose in (min, max))
        return f"between {least} and {largest}"
    values = ", ".join(f"{value} ({count})" for value, count in known.most_common(FEW))
    return f"{values}{', ...' if len(known) > FEW else ''}"


class Group(NamedTuple):
    """One side of a comparison: the word that asked for it, and its finished runs."""

    word: str
    rows: list[Row]


def read_groups(words: Sequence[str], found: Found) -> tuple[Group, Group]:
    """Return the two groups of runs that two words ask for.

    A word is a run id or the start or the end of one, a folder, or filters joined by commas or blanks.

    Args:
        words: one for A and one for B.
        found: the runs that are looked through; its filters count for both groups.

    Raises:
        SelectionError: a word asks for no run or for several ids, no run of a group finished, or the groups overlap.
    """
    a, b = (Group(word, _finished(word, _rows(word, found))) for word in words)
    if shared := {row["folder"] for row in a.rows} & {row["folder"] for row in b.rows}:
        number = "1 run" if len(shared) == 1 else f"{len(shared)} runs"
        raise SelectionError(
            f"{a.word} and {b.word} share {number}, for example {Path(min(shared)).parent.name}: "
            "a run can be in one group only"
        )
    return a, b


def _rows(word: str, found: Found) -> list[Row]:
    if Path(word).is_dir():
        return select(list_runs(Path(word))[0], found.filters)
    if re.search(r"[=<>]", word):
        own = read_filters(word)
        asked = found._replace(filters=[*found.filters, *own])
        if not (rows := select(found.all, asked.filters)):
            raise SelectionError(nothing_found(asked))
        return rows
    ids = sorted({row["run_id"] for row in found.rows})
    meant = [run for run in ids if run == word] or [run for run in ids if run.startswith(word) or run.endswith(word)]
    if len(meant) > 1:
        some = ", ".join(meant[:3]) + (", ..." if len(meant) > 3 else "")
        raise SelectionError(
            f"{word} is a part of the ids of {len(meant)} runs ({some}): write more of it, or a filter"
        )
    if not meant:
        raise SelectionError(
            f"{word} is no run in {found.folder}, no folder and no filter: write an id from the list, or key=value"
        )
    rows = [row for row in found.rows if row["run_id"] == meant[0]]
    question = rows[0]["question"]
    if question and (launches := len({row["run_id"] for row in found.rows if row["question"] == question})) > 1:
        note(f"{meant[0]} is one of {launches} launches of its question; question={question} takes them all")
    return rows


def _finished(word: str, rows: Sequence[Row]) -> list[Row]:
    """Return the runs that finished, after a warning that others are left out."""
    finished = [row for row in rows if row["status"] == "finished"]
    states = Counter(row["status"] for row in rows if row["status"] != "finished")
    others = ", ".join(f"{count} {status}" for status, count in states.items())
    if not finished:
        raise SelectionError(
            f"{word}: no run finished{f' ({others})' if others else ''}, so there is nothing to compare"
        )
    if others:
        warn(f"{word}: runs that did not finish are left out ({others})")
    return finished
