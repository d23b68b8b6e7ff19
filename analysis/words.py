"""Figures and comparisons in words, for the answer to the question of an experiment.

::

    the row of a point, of `over_launches` ──► 43.3 ms [42.1, 44.0]      one launch: 43.3 ms
                                          43.3 ms (disturbed)       something disturbed the timing of a launch
    the launches of two points ── compare ──► "1f1b is 4.0 % faster than gpipe [2.1 %, 5.9 %], 3 launches each"
                                              one launch: "1f1b takes 43.3 ms, against 45.1 ms for gpipe"
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from microp.records import LAUNCH, RANGE_UP_TO, over_launches
from microp.results import ALIKE, compare, launch_times, noise, records

TIME, BUBBLE = "step_ms.median", "bubble.measured"
KIB_BELOW = 1  # MiB
ONE_LAUNCH = "One launch each, so no spread between launches is known: repeat=0,1,2 gives it"
MOST = 4  # points that are listed by name


def number(value: float, like: float | None = None) -> str:
    """Return a number with three significant digits and without exponent, or with as many decimals as `like` has."""
    size = float(f"{abs(value if like is None else like):.3g}")  # 0.9999 has as many decimals as 1
    decimals = 0 if size == 0 else min(3, max(0, 2 - math.floor(math.log10(size))))
    return f"{value:z,.{decimals}f}"


def middle(values: pd.Series[float]) -> str:
    """Return the median of values and, if there are several, their range in parentheses."""
    known = values.dropna()
    low, centre, high = (number(value, known.max()) for value in (known.min(), known.median(), known.max()))
    return centre if low == high else f"{centre} ({low} to {high})"


def mib_text(mib: float) -> str:
    """Return memory as text with its unit."""
    return f"{number(1024 * mib)} KiB" if mib < KIB_BELOW else f"{number(mib)} MiB"


def listed(texts: Sequence[str]) -> str:
    """Return texts as a list in words: a, b and c."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def spread(point: Mapping[str, Any], value: str, unit: str = "", like: float | None = None) -> str:
    """Return a value of a row of `over_launches` with its interval in brackets, and what is known against it.

    The number has the decimals of `like`, by default of the value itself. A single launch has no interval.
    """
    middle, low, high = (float(point[f"{value}{part}"]) for part in ("", ".low", ".high"))
    like = middle if like is None else like
    interval = "" if point["launches"] == 1 else f" [{number(low, like)}, {number(high, like)}]"
    wide = " (its spread is too wide)" if point[f"{value}.wide"] else ""
    return f"{number(middle, like)}{unit and f' {unit}'}{interval}{' (disturbed)' if point['disturbed'] else wide}"


def doubts(table: pd.DataFrame, value: str) -> str:
    """Return how many points of a table are disturbed or, where known, too wide, in parentheses; nothing for none."""
    wide = ~table["disturbed"] & table.get(f"{value}.wide", False)
    counts = {"disturbed": int(table["disturbed"].sum()), "spread too wide": int(wide.sum())}
    told = "; ".join(f"{name}: {count} of {len(table)}" for name, count in counts.items() if count)
    return f" ({told})" if told else ""


def versus(name: str, rows: pd.DataFrame, other: str, others: pd.DataFrame, value: str = TIME) -> str:
    """Return which of two points takes less time, in words: of one launch both times alone.

    `rows` and `others` have one row per launch; `value` is the column of the time in ms.
    """
    result = compare(launch_times(rows, value), launch_times(others, value))
    noisy = [bool(side["disturbed"].any()) for side in (rows, others)]
    if min(result.launches) > 1:
        return f"{result.sentence(name, other)}{' (disturbed)' * any(noisy)}"
    first, second = (number(side[value].median()) for side in (rows, others))
    mine, its = (" (disturbed)" * is_noisy for is_noisy in noisy)
    return f"{name} takes {first} ms{mine}, against {second} ms for {other}{its}"


def undecided(rows: pd.DataFrame, others: pd.DataFrame, value: str = TIME) -> str:
    """Return why a point may not be called faster than another, in a few words; empty if it may.

    `rows` and `others` have one row per launch; `value` is the column of the time.
    """
    if _has_launches(rows) and _has_launches(others):
        verdict = compare(launch_times(rows, value), launch_times(others, value)).verdict
        return "" if verdict == "faster" else "their launches leave it open"
    fast, slow = (
        {end: (own[value] * own[f"step_ms.{end}"] / own[TIME]).median() for end in ("p10", "median", "p90")}
        for own in (rows, others)
    )
    return noise(slow, fast, any(own["disturbed"].any() for own in (rows, others)))


def _has_launches(rows: pd.DataFrame) -> bool:
    """Return whether the rows of a point are several launches; others differ in further keys."""
    return bool(1 < len(rows) == rows[LAUNCH].nunique())


def fastest(rows: pd.DataFrame, value: str, unit: str, what: str = "points") -> tuple[list[str], pd.DataFrame]:
    """Return phrases on the fastest and the slowest of the points that the column `point` names, and a table of them.

    `rows` has one row per launch. Disturbed points are ranked where others lack and the ends are apart.
    """
    table = over_launches(rows, ["point"], [value, BUBBLE, "activation_mib"]).sort_values([value, "point"])
    if len(table) == 1:
        [point] = records(table)
        return [f"{spread(point, value, unit)}, with a bubble of {spread(point, BUBBLE)}"], table
    calm, of = table[~table["disturbed"]], dict(iter(rows.groupby("point")))
    why = undecided(of[table["point"].iloc[0]], of[table["point"].iloc[-1]], value) if len(calm) < 2 else ""
    if why:
        ends = " to ".join(map(number, (table[value].min(), table[value].max())))
        noisy = f"the times of {len(table)} {what} are too noisy to rank{doubts(table, value)}"
        return [f"{noisy}: {ends} {unit}; {why}"], table
    calm = table if len(calm) < 2 else calm
    left_out = f", without {len(table) - len(calm)} disturbed" if len(calm) < len(table) else ""
    least, (first, *others) = records(table)[0], records(calm)
    less = f" ({least['point']} took less, {spread(least, value, unit)})" if least["point"] != first["point"] else ""
    alike = [each["point"] for each in others if undecided(of[first["point"]], of[each["point"]], value)]
    slowest = f"; slowest: {others[-1]['point']} with {spread(others[-1], value, unit)}"
    slowest *= others[-1]["point"] not in alike  # else it contradicts what it stands behind
    alike[MOST:] = [f"{len(alike) - MOST} more"] * (len(alike) > MOST)
    rank = "least time" if alike else "fastest"
    told = [
        f"{rank} of {len(calm)} {what}{left_out}{doubts(calm, value)}: {first['point']} with "
        f"{spread(first, value, unit)}{less}, with a bubble of {spread(first, BUBBLE)}"
        f"{', not told apart from ' * bool(alike)}{listed(alike or [''])}{slowest}"
    ]
    near = [rows[rows["point"] == point] for point in calm["point"][:2]]
    if all(map(_has_launches, near)):
        verdict = versus(first["point"], near[0], calm["point"].iloc[1], near[1], value)
        told.append(f"the two fastest compared: {verdict}")
    return told, table


def least_memory(table: pd.DataFrame) -> list[str]:
    """Return a sentence on the least and the most of the column `activation_mib`, of points named by `point`."""
    known = table.dropna(subset=["activation_mib"]).sort_values("activation_mib", kind="stable")
    if len(known) < 2:
        return []
    least, most = (known.iloc[place] for place in (0, -1))
    low, high = (mib_text(row["activation_mib"]) for row in (least, most))
    if most["activation_mib"] <= ALIKE * least["activation_mib"]:
        return [f"the rank that holds most keeps {'about ' * (low != high)}{low} of activations in all of them"]
    as_little = (known["activation_mib"] <= ALIKE * least["activation_mib"]).sum() - 1
    as_much = (known["activation_mib"] >= most["activation_mib"] / ALIKE).sum() - 1
    few, many = (f" (and {n} more)" if n else "" for n in (as_little, as_much))
    kept = "where the rank that holds most keeps"
    return [f"least activations: {least['point']}{few}, {kept} {low}; most: {most['point']}{many} with {high}"]


def closing(rows: pd.DataFrame, by: list[str]) -> str:
    """Return a sentence on what the brackets of an answer, whose points `by` names, are, or that there is no spread."""
    most = int(rows.groupby(by, dropna=False)[LAUNCH].nunique().max())
    if most == 1:
        return ONE_LAUNCH
    kind = "ranges" if most <= RANGE_UP_TO else "95 % bootstrap intervals"
    return f"Brackets: {kind} over up to {most} launches; behind a verdict, 95 % intervals"


def widest(table: pd.DataFrame, values: Iterable[str]) -> str:
    """Return a sentence on the widest interval over launches of these values of a table of `over_launches`."""
    if table["launches"].max() == 1:
        return ONE_LAUNCH
    width = max((table[f"{value}.high"] - table[f"{value}.low"]).max() for value in values)
    return f"Of a ratio, the interval over launches is at most {number(width)} wide"


def sentences(texts: Iterable[str]) -> str:
    """Return texts as sentences: each with a full stop, and a capital first letter unless it begins with a key."""
    begins = [text if "=" in text.split(" ")[0] else text[:1].upper() + text[1:] for text in texts]
    return " ".join(f"{text}." for text in begins)
