"""Figures and comparisons in words, with their spread over launches and what is known against them.

::

    the row of a point, from `points` ──► 43.3 ms [42.1, 44.0]      one launch: 43.3 ms
                                          43.3 ms (disturbed)       something disturbed the timing of a launch
    the launches of two points ── compare ──► "1f1b is 4.0 % faster than gpipe [2.1 %, 5.9 %], 3 launches each"
                                              one launch: "1f1b takes 43.3 ms, against 45.1 ms for gpipe"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from microp.store import LAUNCH, RANGE_UP_TO, compare, launch_times, over_launches

TIME = "step_ms.median"
KIB_BELOW = 0.1  # MiB


# --- figures --------------------------------------------------------------------------------------------


def number(value: float, like: float | None = None) -> str:
    """Return a number with three significant digits and without exponent, or with as many decimals as `like` has."""
    size = abs(value if like is None else like)
    size = float(f"{size:.3g}")  # 0.9999 has as many decimals as 1
    decimals = 0 if size == 0 else min(3, max(0, 2 - math.floor(math.log10(size))))
    return f"{value:,.{decimals}f}"


def middle(values: pd.Series[float]) -> str:
    """Return the median of values and, if there are several, their range in parentheses."""
    known = values.dropna()
    low, centre, high = (number(value, known.max()) for value in (known.min(), known.median(), known.max()))
    return centre if low == high else f"{centre} ({low} to {high})"


def memory(*mib: float) -> list[str]:
    """Return memory as text with its unit, the same unit for all."""
    factor, unit = (1024, "KiB") if min(mib) < KIB_BELOW else (1, "MiB")
    return [f"{number(factor * value)} {unit}" for value in mib]


def listed(texts: Sequence[str]) -> str:
    """Return texts as a list in words: a, b and c."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


# --- points -----------------------------------------------------------------------------------------------


def points(rows: pd.DataFrame, by: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Return a table as `over_launches`, with the column `disturbed`: whether the timing of a launch was."""
    table = over_launches(rows, by, values)
    own = rows.groupby(list(by), sort=True, dropna=False)["disturbed"]
    return table.assign(disturbed=own.any().to_numpy(dtype=bool))


def spread(point: Mapping[str, Any], value: str, unit: str = "", like: float | None = None) -> str:
    """Return a point's value as `figure` does, and what is known against it: disturbed, or too wide a spread."""
    doubt = " (its spread is too wide)" if point[f"{value}.wide"] else ""
    return f"{figure(point, value, unit, like)}{' (disturbed)' if point['disturbed'] else doubt}"


def figure(point: Mapping[str, Any], value: str, unit: str = "", like: float | None = None) -> str:
    """Return a point's value with its interval over launches in brackets.

    Args:
        point: a row of `points`. A single launch has no interval.
        value: the name of the value.
        unit: the unit of the value.
        like: the number whose decimals are shown; by default the value itself.
    """
    middle, low, high = (float(point[f"{value}{part}"]) for part in ("", ".low", ".high"))
    like = middle if like is None else like
    interval = "" if point["launches"] == 1 else f" [{number(low, like)}, {number(high, like)}]"
    return f"{number(middle, like)}{unit and f' {unit}'}{interval}"


def doubts(table: pd.DataFrame, value: str, noun: str = "") -> str:
    """Return how many points of a table are disturbed or too wide, in parentheses; nothing if there are none.

    Args:
        table: a table of `points`.
        value: the name of the value that the sentence is on.
        noun: what the points are called, in the plural, if the sentence has not said it.
    """
    wide = table[f"{value}.wide"].astype(bool) & ~table["disturbed"]
    counts = {"disturbed": int(table["disturbed"].sum()), "spread too wide": int(wide.sum())}
    of = f" of {len(table)}{noun and f' {noun}'}"
    told = [f"{name}: {count}{of}" if len(table) > 1 else name for name, count in counts.items() if count]
    return f" ({'; '.join(told)})" if told else ""


def versus(name: str, rows: pd.DataFrame, other: str, others: pd.DataFrame, value: str = TIME) -> str:
    """Return which of two points takes less time, in words: with one launch only both times, without a verdict.

    Args:
        name: what the first point is called.
        rows: its rows, one per launch.
        other: what the second point is called.
        others: its rows, one per launch.
        value: the column of the time in ms.
    """
    result = compare(launch_times(rows, value), launch_times(others, value))
    disturbed = pd.concat([rows["disturbed"], others["disturbed"]])
    if min(result.launches) > 1:
        told = f" (disturbed: {disturbed.sum()} of {len(disturbed)} launches)" if disturbed.any() else ""
        return f"{result.sentence(name, other)}{told}"
    first, second = (
        f"{number(own[value].median())} ms{' (disturbed)' if own['disturbed'].any() else ''}" for own in (rows, others)
    )
    return f"{name} takes {first}, against {second} for {other}"


# --- sentences --------------------------------------------------------------------------------------------


def brackets(launches: int) -> str:
    """Return what the brackets of a figure are, in the plural."""
    return "ranges" if launches <= RANGE_UP_TO else "95 % bootstrap intervals"


def closing(rows: pd.DataFrame, by: list[str], compared: bool = False) -> str:
    """Return a sentence on what the brackets of an answer are, or that there is no spread.

    Args:
        rows: the rows of the answer, one per launch.
        by: the columns that name a point.
        compared: whether the answer has verdicts of `versus`.
    """
    most = int(rows.groupby(by, dropna=False)[LAUNCH].nunique().max())
    if most == 1:
        return "One launch each, so no spread between launches is known: repeat=0,1,2 gives it."
    verdicts = "; behind a verdict, 95 % intervals" if compared else ""
    return f"Brackets: {brackets(most)} over up to {most} launches{verdicts}."


def sentence(text: str) -> str:
    """Return text with a capital first letter and a full stop, unless it begins with a name such as 1f1b."""
    first = text[:1]
    return f"{first.upper()}{text[1:].rstrip('.')}."
