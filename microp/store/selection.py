"""Selects recorded runs by filters such as `schedule=1f1b` and `chunks>4`.

::

    outputs/runs/... ── list_runs ──► rows, newest first ── select ──► the rows that all filters let pass

    model.dim           config.model.dim         a key of the configuration, as typed on the command line
    schedule            config.schedule.name     a group: its option
    bubble.measured     bubble.measured          a number of summary.json
    step_ms             step_ms.median           a shorter name of one
    commit              env.commit               a fact of env.json

A row is a flat dictionary with the columns of `load_runs`. This module does without pandas, which takes longer to
import than a listing takes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, NamedTuple

from microp.store.disturbance import disturbances
from microp.store.frames import read_attempts, read_runs
from microp.store.records import Row, attempts

SHORT = {
    "run": "run_id",
    "when": "started",
    "step_ms": "step_ms.median",
    "bubble": "bubble.measured",
    "loss": "loss.last",
}
ORDERS: dict[str, Callable[[Any, Any], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_FILTER = re.compile(r"\s*([^=<>!]+?)\s*(!=|>=|<=|==?|>|<)(.*)", re.DOTALL)
_BETWEEN = re.compile(r"[,\s]+(?=[\w.-]+\s*[=<>!])")
_MISSING = ("null", "none")


class SelectionError(ValueError):
    """A filter or a column cannot be used; the message says why and what to write instead."""


def list_runs(folder: Path) -> tuple[list[Row], list[str]]:
    """Return one row per run below `folder`, newest first, and why others cannot be read, one sentence each.

    A run's row is that of its newest finished attempt, or else of its newest attempt. Rows are flat.
    """
    return _newest_first(*read_runs(folder))


def list_attempts(folder: Path) -> tuple[list[Row], list[str]]:
    """Return one row per attempt below `folder`, newest first, and why others cannot be read, one sentence each."""
    return _newest_first(*read_attempts(attempts(folder)))


def _newest_first(rows: list[Row], unreadable: list[str]) -> tuple[list[Row], list[str]]:
    """Return rows as flat dictionaries, with `disturbed` (why not to trust the run's times), newest first."""
    flat = [flatten(row) | {"disturbed": _disturbed(row)} for row in rows]
    return sorted(flat, key=lambda row: float(row["started"]), reverse=True), unreadable


def _disturbed(row: Row) -> str | None:
    if "step_ms" not in row:
        return None
    return ", ".join(each.text for each in disturbances(row, row["env"])) or None


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Row:
    """Return a dictionary without nested ones, whose keys are joined by dots."""
    flat: Row = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def when(started: float) -> str:
    """Return a time as `2026-11-22 05:14`, in local time."""
    return datetime.fromtimestamp(started).strftime("%Y-%m-%d %H:%M")


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the columns of all rows, in the order in which they first appear."""
    return list(dict.fromkeys(column for row in rows for column in row))


def column_named(name: str, columns: Sequence[str]) -> str:
    """Return the column that a user means by `name`.

    Raises:
        SelectionError: there is none.
    """
    for column in (f"config.{name}", f"config.{name}.name", SHORT.get(name, name), name, f"env.{name}"):
        if column in columns:
            return column
    near = get_close_matches(name, _spellings(columns), 2)
    hint = f"did you mean {' or '.join(near)}?" if near else "write for example schedule, model.dim, step_ms or status"
    raise SelectionError(f"{name} is no column of these runs: {hint} (--columns=help lists all)")


def spelling(column: str) -> str:
    """Return the shortest name by which `column_named` finds a column."""
    short = {column: name for name, column in SHORT.items()}
    return short.get(column) or column.removeprefix("config.").removeprefix("env.").removesuffix(".name")


def _spellings(columns: Sequence[str]) -> list[str]:
    return sorted({spelling(column) for column in columns} | set(columns))


class Filter(NamedTuple):
    """A condition on one column.

    Attributes:
        text: as it was typed.
        name: the column, as it was typed.
        sign: `=`, `!=`, `>`, `>=`, `<` or `<=`.
        wanted: the values to compare with: one, or several for `=` and `!=`.
    """

    text: str
    name: str
    sign: str
    wanted: tuple[str, ...]

    def lets_pass(self, value: Any) -> bool:
        """Return whether the value of a row meets the condition; a missing value only meets `!=` and `=null`."""
        if order := ORDERS.get(self.sign):
            size = size_of(value)
            return size is not None and order(size, _number(self.wanted[0]))
        return any(_equal(value, wanted) for wanted in self.wanted) == (self.sign == "=")


def read_filters(text: str) -> list[Filter]:
    """Return the filters that a text states, for example two for `schedule=1f1b,gpipe chunks>4`.

    Filters are joined by blanks or commas. A comma that no key and sign follow joins the values of one filter.

    Raises:
        SelectionError: a part of the text is no filter.
    """
    return [_read_filter(part) for part in _BETWEEN.split(text)]


def _read_filter(text: str) -> Filter:
    match = _FILTER.fullmatch(text)
    if not match:
        if not re.fullmatch(r"[\w.]+", text):
            raise SelectionError(f"{text} is neither a folder nor a filter: write key=value, or in quotes 'key>number'")
        raise SelectionError(
            f"{text} is neither a folder nor a filter: write {text}=value, or in quotes '{text}>4'. Without quotes the "
            "shell takes > or < and what follows for a redirection, and > writes a file of that name"
        )
    name, sign, rest = match[1], match[2].replace("==", "="), match[3].strip()
    wanted = (rest,) if sign in ORDERS else tuple(split_outside_brackets(rest))
    if not all(wanted):
        raise SelectionError(f"{text} has no value after {sign}: write for example {name}{sign}4, or {name}=null")
    return Filter(text, name, sign, wanted)


def split_outside_brackets(text: str) -> list[str]:
    """Return the parts of a text between its commas; those inside brackets, as in `[4,12]`, do not count."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def select(rows: Sequence[Row], filters: Sequence[Filter]) -> list[Row]:
    """Return the rows that all filters let pass.

    Raises:
        SelectionError: a filter names no column, or its value is not of the column's type.
    """
    columns = columns_of(rows)
    found = list(rows)
    for each in filters if rows else ():
        column = column_named(each.name, columns)
        if column == "started":
            meets: Callable[[Any], bool] = _time_condition(each)
        else:
            _check_type(each, [value for row in rows if not is_missing(value := row.get(column))])
            meets = each.lets_pass
        found = [row for row in found if meets(row.get(column))]
    return found


def _check_type(each: Filter, values: Sequence[Any]) -> None:
    """Raise SelectionError if the filter's values are not of the type of the column's values."""
    if each.sign in ORDERS:
        if _number(each.wanted[0]) is None:
            raise SelectionError(f"{each.text}: {each.wanted[0]} is not a number: write for example {each.name}>4")
        if values and all(size_of(value) is None for value in values):
            raise SelectionError(f"{each.text}: {each.name} has no numbers, but {_some(values)}: use = or !=")
        return
    for wanted in each.wanted:
        if wanted.lower() in _MISSING or not values:
            continue
        if all(isinstance(value, bool) for value in values):
            if wanted.lower() not in ("true", "false"):
                raise SelectionError(f"{each.text}: {each.name} is true or false")
        elif all(_is_number(value) for value in values) and _number(wanted) is None:
            raise SelectionError(f"{each.text}: {wanted} is not a number, and {each.name} is one: {_some(values)}")


def _time_condition(each: Filter) -> Callable[[float], bool]:
    """Return the condition that a filter states on the time at which a run started."""
    try:
        times = [datetime.fromisoformat(wanted).timestamp() for wanted in each.wanted]
    except ValueError:
        example = f"{each.name}=2026-11-22 or '{each.name}>2026-11-22 05:10'"
        raise SelectionError(f"{each.text} is no time: write for example {example}") from None
    if order := ORDERS.get(each.sign):
        return lambda started: order(started, times[0])
    starts = tuple(wanted.replace("T", " ") for wanted in each.wanted)
    return lambda started: when(started).startswith(starts) == (each.sign == "=")


def is_missing(value: Any) -> bool:
    """Return whether a row has no such value."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def size_of(value: Any) -> float | None:
    """Return the number that is compared with others: of a list with one number per rank it is the largest."""
    if isinstance(value, list) and value and all(map(_is_number, value)):
        return float(max(value))
    return float(value) if _is_number(value) and not is_missing(value) else None


def _equal(value: Any, wanted: str) -> bool:
    if is_missing(value):
        return wanted.lower() in _MISSING
    if isinstance(value, bool):
        return wanted.lower() == str(value).lower()
    if _is_number(value):
        return _number(wanted) == float(value)
    return text_of(value).replace(" ", "") == wanted.replace(" ", "")


def text_of(value: Any) -> str:
    """Return a value as it is typed on the command line; - if it is missing."""
    if is_missing(value):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text_of, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(row: Row, column: str) -> str:
    """Return the value of a row as a table shows it: numbers to five digits, times as text; - if it is missing."""
    value = row.get(column)
    if column == "started" and value is not None:
        return when(value)
    return f"{value:.5g}" if isinstance(value, float) and not is_missing(value) else text_of(value)


def _some(values: Sequence[Any], most: int = 4) -> str:
    """Return a few of the different values, for a message."""
    known = sorted(dict.fromkeys(map(text_of, values)))
    return ", ".join(known[:most]) + (", ..." if len(known) > most else "")
