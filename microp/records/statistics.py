"""Medians and confidence intervals over launches, the repetitions of an experiment.

::

    rows       question A, repeat 0   42.1          point      value   low    high   launches  wide
               question A, repeat 1   44.0    ──►   A          43.3    42.1   44.0   3         False
               question A, repeat 2   43.3
                                                    low, high: the range of up to five launches, of more
                                                    a 95 % bootstrap interval of the median

The steps of one launch are not independent (same core, temperature and load), so they are not
repetitions: a launch counts once, with the median of its measured steps. Configurations are
compared by launch: repeat 0 with repeat 0, which has the same seed and data and ran at about the
same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # ranks do not import pandas
    import pandas as pd

LAUNCH = "config.repeat"
DRAWS = 2000
_MEMORY = re.compile("[kmg]ib|bytes|kept|in_flight")  # columns that do not depend on time
RANGE_UP_TO = 5  # launches: a bootstrap interval of the median of so few is their range, and not one of 95 %
WIDE = 0.1  # of an interval, relative to the value: wider ones are marked
WIDE_FRACTION = 0.02  # absolute, for fractions such as bubble and utilisation
WIDE_STEPS = 0.2  # p10 to p90 of a launch's steps, relative to their median
_STEPS = ("step_ms.p10", "step_ms.median", "step_ms.p90")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of up to `RANGE_UP_TO` values, and of more a 95 % bootstrap interval of the median.

    It does not depend on the order of the values; of no values it is NaN.
    """
    if len(values) <= RANGE_UP_TO:
        return float(min(values, default=np.nan)), float(max(values, default=np.nan))
    # seaborn.algorithms.bootstrap gives the same intervals, but draws in a Python loop: 21 ms each instead of 0.2 ms.
    ordered = np.sort(np.asarray(values, dtype=float))
    picked = np.random.default_rng(0).integers(0, len(ordered), (DRAWS, len(ordered)))
    low, high = np.percentile(np.median(ordered[picked], axis=1), [2.5, 97.5])
    return float(low), float(high)


def over_launches(rows: pd.DataFrame, by: Sequence[str], values: Sequence[str], floor: float = 0.0) -> pd.DataFrame:
    """Return medians and intervals over launches, with one row per combination of `by`, sorted.

    `rows` has one row per launch; of the columns `values`, launches without a number are left out. An interval up to
    `floor` wide is never too wide (`WIDE_FRACTION` for fractions).

    Returns:
        the columns `by`; for each value its median under its own name, with `<value>.low`, `<value>.high` and
        `<value>.wide`: not to be relied on, because it spreads too widely or was disturbed (memory is exact, and never
        is); `launches`; and `disturbed` if `rows` has it, of half of the launches: a median passes over fewer.
    """
    import pandas as pd

    has_steps = {*_STEPS} <= {*rows.columns}
    points = []
    for name, launches in rows.groupby(list(by), sort=True, dropna=False):
        p10, typical, p90 = (launches[name].astype(float) if has_steps else pd.Series(dtype=float) for name in _STEPS)
        spread = ((p90 - p10) / typical).median()
        point = {**dict(zip(by, name, strict=True)), "launches": len(launches)}
        disturbed = "disturbed" in rows and bool(launches["disturbed"].mean() >= 0.5)
        point |= {"disturbed": disturbed} if "disturbed" in rows else {}
        for value in values:
            known = launches[value].astype(float).dropna()
            middle, (low, high) = known.median(), interval(known.tolist())
            uncertain = disturbed or spread > WIDE_STEPS or high - low > max(WIDE * abs(middle), floor)
            wide = len(known) and uncertain and not _MEMORY.search(value)
            point |= {value: middle, f"{value}.low": low, f"{value}.high": high, f"{value}.wide": bool(wide)}
        points.append(point)
    about = ["launches", "disturbed"] if "disturbed" in rows else ["launches"]
    columns = [*by, *(f"{value}{part}" for value in values for part in ("", ".low", ".high", ".wide")), *about]
    return pd.DataFrame(points, columns=columns)


def paired(rows: pd.DataFrame, baseline: pd.DataFrame, on: Sequence[str], value: str) -> pd.DataFrame:
    """Return `rows` with a column `ratio`: their `value` over the baseline's value in the same launch.

    Both have one row per launch and must agree in the columns `on`.

    Returns:
        the rows whose launch the baseline also has; one is `disturbed` if it or its baseline was.

    Raises:
        ValueError: the baseline has two rows for one launch, because `on` names too few columns.
    """
    keys = [*on, LAUNCH]
    other = baseline[[*keys, value]].assign(_disturbed=baseline.get("disturbed", False))
    other = other.rename(columns={value: "_other"})
    if other.duplicated(keys).any():
        raise ValueError(f"the baseline has several rows for one launch of {list(on)}: name what else differs")
    joined = rows.merge(other, on=keys, how="inner")
    if "disturbed" in joined:
        joined["disturbed"] |= joined["_disturbed"]
    return joined.assign(ratio=joined[value] / joined["_other"]).drop(columns=["_other", "_disturbed"])


def least_squares(x: Iterable[float], y: Iterable[float]) -> tuple[float, float]:
    """Return intercept a and slope b of the line a + b x with the least squares of relative errors.

    The errors are relative because the error of a timing grows with the time; absolute errors would
    let the longest times decide.
    """
    at, values = np.array(list(x), dtype=float), np.array(list(y), dtype=float)
    slope, intercept = np.polyfit(at, values, 1, w=1 / values)
    return float(intercept), float(slope)
