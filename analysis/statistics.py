"""Medians and intervals over launches, which are the repetitions.

::

    rows       question A, repeat 0   42.1          point      value   low    high   launches  wide
               question A, repeat 1   44.0    ──►   A          43.3    42.1   44.0   3         False
               question A, repeat 2   43.3
                                                    low, high: a 95 % bootstrap interval of the median

Steps of one launch share its luck (which core, how warm, who else computes), so that they are
no repetitions: a launch counts once, by the median of its measured steps. Configurations are
compared launch by launch: repeat 0 with repeat 0, whose seed, data and hour are the same.

A point is too wide, and is marked, where its interval is wider than a tenth of its value (a
fraction: than 0.02 if that is more), or where the steps of its launches spread over more
than a fifth of their median from p10 to p90.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

LAUNCH = "config.repeat"
DRAWS = 2000
WIDE = 0.1  # of the value
WIDE_FRACTION = 0.02  # of a bubble, a utilisation
WIDE_STEPS = 0.2  # p10 to p90 of the steps of a launch, of their median


def interval(values: Sequence[float], draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """A 95 % bootstrap interval of the median: the same values in any order give the same one.

    Of up to five values it is their range; of one it is that value, twice.
    """
    # seaborn.algorithms.bootstrap gives the same intervals, but draws in a Python loop: 21 ms each instead of 0.2 ms.
    ordered = np.sort(np.asarray(values, dtype=float))
    picked = np.random.default_rng(seed).integers(0, len(ordered), (draws, len(ordered)))
    low, high = np.percentile(np.median(ordered[picked], axis=1), [2.5, 97.5])
    return float(low), float(high)


def over_launches(rows: pd.DataFrame, by: Sequence[str], values: Sequence[str], floor: float = 0.0) -> pd.DataFrame:
    """A line for each combination of `by`, in their order: how `values` stand over its launches.

    Args:
        rows: a row a launch.
        by: columns that name a point.
        values: columns of numbers; launches without one are left out of it.
        floor: a width that is not too wide, whatever the value (`WIDE_FRACTION` for fractions).

    Returns:
        the columns `by`; `launches`; for each value its median under its own name, `<value>.low`,
        `<value>.high` and `<value>.wide`.
    """
    lines = [
        {**dict(zip(by, names, strict=True)), **_point(own, values, floor)}
        for names, own in rows.groupby(list(by), sort=True, dropna=False)
    ]
    columns = [*by, "launches", *(f"{value}{part}" for value in values for part in ("", ".low", ".high", ".wide"))]
    return pd.DataFrame(lines, columns=columns)


def _point(own: pd.DataFrame, values: Sequence[str], floor: float) -> dict[str, Any]:
    unsteady = _steps_are_wide(own)
    point: dict[str, Any] = {"launches": len(own)}
    for value in values:
        numbers = own[value].dropna().astype(float)
        if numbers.empty:
            point |= {value: np.nan, f"{value}.low": np.nan, f"{value}.high": np.nan, f"{value}.wide": False}
            continue
        middle, (low, high) = float(numbers.median()), interval(numbers.tolist())
        wide = unsteady or high - low > max(WIDE * abs(middle), floor)
        point |= {value: middle, f"{value}.low": low, f"{value}.high": high, f"{value}.wide": wide}
    return point


def _steps_are_wide(own: pd.DataFrame) -> bool:
    """Whether the steps within the launches scatter too much to be spoken of."""
    if not {"step_ms.p10", "step_ms.p90", "step_ms.median"} <= set(own.columns):
        return False
    return bool(((own["step_ms.p90"] - own["step_ms.p10"]) / own["step_ms.median"]).median() > WIDE_STEPS)


def paired(rows: pd.DataFrame, baseline: pd.DataFrame, on: Sequence[str], value: str) -> pd.DataFrame:
    """`rows` with a column `ratio`: their `value` over that of the baseline's same launch.

    Args:
        rows: a row a launch.
        baseline: a row a launch, at most one for each launch and combination of `on`.
        on: columns in which both agree, beside the launch.
        value: the column that is compared.

    Returns:
        the rows whose launch the baseline has.

    Raises:
        ValueError: the baseline has two rows for one launch: `on` names too little.
    """
    keys = [*on, LAUNCH]
    other = baseline[[*keys, value]].rename(columns={value: "_other"})
    if other.duplicated(keys).any():
        raise ValueError(f"the baseline has several rows for one launch of {list(on)}: name what else differs")
    joined = rows.merge(other, on=keys, how="inner")
    return joined.assign(ratio=joined[value] / joined["_other"]).drop(columns="_other")


def least_squares(x: Iterable[float], y: Iterable[float]) -> tuple[float, float]:
    """Intercept a and slope b of the line a + b x nearest to the points, each distance relative to its y.

    Relative, since a timing's error grows with the time; a plain fit would hear the longest points only.
    """
    at, values = np.array(list(x), dtype=float), np.array(list(y), dtype=float)
    slope, intercept = np.polyfit(at, values, 1, w=1 / values)
    return float(intercept), float(slope)
