"""Selects recorded runs by filters such as `schedule=1f1b` and `chunks>4`.

::

    outputs/runs/... ── find ──► a frame, newest first ── select ──► the rows that all filters let pass

    model.dim           config.model.dim         a key of the configuration, as typed on the command line
    schedule            config.schedule.name     a group: its option
    bubble.measured     bubble.measured          a number of summary.json
    step_ms             step_ms.median           a shorter name of one
    commit              env.commit               a fact of env.json

A frame's columns are those of `load_runs`; `disturbed` says why not to trust a run's times. Its values are as they were
recorded: a list stays a list, and a value that is missing is None or NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import reduce
from operator import and_, ge, gt, le, lt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from microp.records import Row, disturbances
from microp.results.frames import read_runs
from microp.results.swept import MISSING, text
from microp.system import flatten

if TYPE_CHECKING:  # ranks do not import pandas
    import pandas as pd

SHORT = {
    "run": "run_id",
    "when": "started",
    "step_ms": "step_ms.median",
    "bubble": "bubble.measured",
    "loss": "loss.last",
}
ORDERS: dict[str, Callable[[Any, Any], pd.Series]] = {">": gt, ">=": ge, "<": lt, "<=": le}
FEW = 8  # values of a key that a message lists
_FILTER = re.compile(r"\s*([^=<>!]+?)\s*(!=|>=|<=|==?|>|<)(.*)", re.DOTALL)
_BETWEEN = re.compile(r"[,\s]+(?=[\w.-]+\s*[=<>!])")


class SelectionError(ValueError):
    """A filter or a column cannot be used; the message says why and what to write instead."""


# --- columns -----------------------------------------------------------------------------------------------


def column_named(name: str, columns: Iterable[Hashable]) -> str:
    """Return the column that a user means by `name`.

    Raises:
        SelectionError: there is none.
    """
    known = list(map(str, columns))
    for column in (f"config.{name}", f"config.{name}.name", SHORT.get(name, name), name, f"env.{name}"):
        if column in known:
            return column
    near = get_close_matches(name, sorted({*map(spelling, known), *known}), 2)
    hint = f"did you mean {' or '.join(near)}?" if near else "write for example schedule, model.dim, step_ms or status"
    raise SelectionError(f"{name} is no column of these runs: {hint} (--columns=help lists all)")


def spelling(column: str) -> str:
    """Return the shortest name by which `column_named` finds a column."""
    short = {column: name for name, column in SHORT.items()}
    return short.get(column) or column.removeprefix("config.").removeprefix("env.").removesuffix(".name")


# --- values ------------------------------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    """Return whether a row has no such value."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def size_of(value: Any) -> float:
    """Return the number that is compared with others: of a list with one number per rank the largest; NaN for none."""
    values = value if isinstance(value, list) else [value]
    known = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return float(max(known)) if known and len(known) == len(values) else math.nan


def text_of(value: Any) -> str:
    """Return a value as it is typed on the command line; - if it is missing."""
    return MISSING if is_missing(value) else text(value)


def shown(value: Any, column: str) -> str:
    """Return a value as a table shows it: numbers to five digits, times as text; - if it is missing."""
    if column == "started":
        return when(value)
    if isinstance(value, list):
        return f"[{','.join(shown(part, column) for part in value)}]"
    return f"{value:.5g}" if isinstance(value, float) and not is_missing(value) else text_of(value)


def when(started: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a time as `2026-11-22 05:14`, in local time."""
    return datetime.fromtimestamp(started).strftime(form)


# --- filters -----------------------------------------------------------------------------------------------


class Filter(NamedTuple):
    """A condition on one column."""

    text: str  # as it was typed
    name: str  # the column, as it was typed
    sign: str  # `=`, `!=`, `>`, `>=`, `<` or `<=`
    wanted: tuple[str, ...]  # the values to compare with: one, or several for `=` and `!=`


def read_filters(text: str) -> list[Filter]:
    """Return the filters that a text states, for example two for `schedule=1f1b,gpipe chunks>4`.

    Filters are joined by blanks or commas. A comma that no key and sign follow joins the values of one filter.

    Raises:
        SelectionError: a part of the text is no filter.
    """
    filters = []
    for part in _BETWEEN.split(text):
        if not (match := _FILTER.fullmatch(part)):
            raise SelectionError(
                f"{part} is neither a folder nor a filter: write key=value, or in quotes 'key>number'. Without quotes "
                "the shell takes > or < and what follows for a redirection, and > writes a file of that name"
            )
        name, sign, rest = match[1], match[2].replace("==", "="), match[3].strip()
        wanted = (rest,) if sign in ORDERS else tuple(split_outside_brackets(rest))
        if not all(wanted):
            raise SelectionError(f"{part} has no value after {sign}: write for example {name}{sign}4, or {name}=null")
        filters.append(Filter(part, name, sign, wanted))
    return filters


def split_outside_brackets(text: str) -> list[str]:
    """Return the parts of a text between its commas; those inside brackets, as in `[4,12]`, do not count."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def select(frame: pd.DataFrame, filters: Sequence[Filter]) -> pd.DataFrame:
    """Return the rows that all filters let pass; a missing value only meets `!=` and `=null`.

    Raises:
        SelectionError: a filter names no column, or what it compares with is no number.
    """
    passing = [_meets(frame[column_named(condition.name, frame)], condition) for condition in filters]
    return frame[reduce(and_, passing)] if passing else frame


def _meets(values: pd.Series, condition: Filter) -> pd.Series:
    """Return for each value of a column whether it meets the condition."""
    text, name, sign, wanted = condition
    numbers = {value: number for value in wanted if (number := _number(value)) is not None}
    if sign in ORDERS:
        if not numbers:
            raise SelectionError(f"{text}: {wanted[0]} is not a number: write for example {name}>4")
        return ORDERS[sign](values.map(size_of), numbers[wanted[0]])
    accepted, is_met = [value.replace(" ", "").lower() for value in wanted], sign == "="
    if name == "disturbed" and accepted in (["true"], ["false"]):  # its values say why
        accepted, is_met = ["null"], is_met == (accepted == ["false"])
    accepted += [MISSING for value in accepted if value in ("null", "none")]
    accepted += map(text_of, numbers.values())
    return values.map(lambda value: text_of(value).replace(" ", "").lower()).isin(accepted) == is_met


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# --- what a command line asks for --------------------------------------------------------------------------


class Runs(NamedTuple):
    """The runs of a folder that meet the filters."""

    folder: Path  # where they were looked for
    filters: list[Filter]  # what they meet
    all: pd.DataFrame  # all runs there, newest first
    rows: pd.DataFrame  # those that meet the filters
    unreadable: list[str]  # why runs cannot be read, one sentence each
    nested: dict[str, Row]  # of each folder of an attempt its row as it was recorded


def find(words: Sequence[str], every: bool = False) -> Runs:
    """Return the runs, or `every` attempt, that the words of a command line ask for.

    The words are filters, and at most one folder (else: outputs).

    Raises:
        SelectionError: a word is neither a folder nor a filter, the filter names no column, or there are no runs.
    """
    words = [word.removeprefix("output_dir=") for word in words]  # as the command that made the runs names the folder
    folders = [Path(word) for word in words if Path(word).is_dir()]
    filters = [condition for word in words if not Path(word).is_dir() for condition in read_filters(word)]
    if len(folders) > 1:
        raise SelectionError(f"{folders[0]} and {folders[1]} are two folders: give one, or compare them with --compare")
    folder = folders[0] if folders else Path("outputs")
    if not folder.is_dir():
        raise SelectionError("there is no folder outputs here: give the folder with your runs as the first word")
    rows, unreadable = read_runs(folder, every)
    if not rows and unreadable:
        raise SelectionError(f"{folder} holds no run that can be read: {'; '.join(unreadable[:FEW])}")
    if not rows:
        raise SelectionError(f"{folder} holds no runs: make one with python -m microp.run")
    rows.sort(key=lambda row: float(row["started"]), reverse=True)
    frame = _frame_of(rows)
    return Runs(folder, filters, frame, select(frame, filters), unreadable, {row["folder"]: row for row in rows})


def _frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    import pandas as pd

    reasons = (", ".join(reason.text for reason in disturbances(row, row["env"])) or None for row in rows)
    flat = [{**flatten(row), "disturbed": why} for row, why in zip(rows, reasons, strict=True)]
    return pd.DataFrame(flat, dtype=object)


def nothing_found(runs: Runs) -> str:
    """Return why no run meets the filters: the values that there are, or how many runs each filter lets pass."""
    number = f"none of the {len(runs.all)} runs in {runs.folder}"
    counts = {condition: len(select(runs.all, [condition])) for condition in runs.filters}
    for condition, count in counts.items():
        if not count:
            column = column_named(condition.name, runs.all)
            values = list(dict.fromkeys(shown(value, column) for value in runs.all[column]))
            some = ", ".join([*values[:FEW], *["..."] * (len(values) > FEW)])
            return f"{number} has {condition.text}; {condition.name} is {some}"
    alone = ", ".join(f"{condition.text} ({count})" for condition, count in counts.items())
    return f"{number} meets all filters; each alone: {alone}"


class Group(NamedTuple):
    """One side of a comparison: the word that asked for it, its finished runs, and how many others it has."""

    word: str
    rows: pd.DataFrame
    unfinished: int


def read_groups(words: Sequence[str], runs: Runs) -> tuple[Group, Group]:
    """Return the two groups of runs that two words ask for; the filters of `runs` count for both.

    A word is a run id or a part of one, a folder, or filters joined by commas or blanks.

    Raises:
        SelectionError: a word asks for no run or for several ids, no run of a group finished, or the groups overlap.
    """
    groups = []
    for word in words:
        rows = _asked(word, runs)
        finished = rows[rows["status"] == "finished"]
        if finished.empty:
            raise SelectionError(f"{word}: none of {len(rows)} runs finished, so there is nothing to compare")
        groups.append(Group(word, finished, len(rows) - len(finished)))
    a, b = groups
    if shared := sorted({*a.rows["folder"]} & {*b.rows["folder"]}):
        example = Path(shared[0]).parent.name
        raise SelectionError(f"{a.word} and {b.word} share runs, as {example}: a run can be in one group only")
    return a, b


def _asked(word: str, runs: Runs) -> pd.DataFrame:
    if Path(word).is_dir():
        return select(find([word]).all, runs.filters)
    if re.search(r"[=<>]", word):
        asked = runs._replace(filters=[*runs.filters, *read_filters(word)])
        rows = select(asked.all, asked.filters)
        if rows.empty:
            raise SelectionError(nothing_found(asked))
        return rows
    meant = sorted({run for run in runs.rows["run_id"] if word in run})
    if len(meant) > 1:
        some = ", ".join(meant[:3]) + (", ..." if len(meant) > 3 else "")
        raise SelectionError(f"{word} is a part of the ids of {len(meant)} runs ({some}): write more, or a filter")
    if not meant:
        raise SelectionError(
            f"{word} is no run in {runs.folder}, no folder and no filter: write an id from the list, or key=value"
        )
    return runs.rows[runs.rows["run_id"].isin(meant)]
