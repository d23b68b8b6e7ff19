"""Units of time for drawings."""

from __future__ import annotations

from math import floor, log10
from typing import NamedTuple


class Scale(NamedTuple):
    """A unit of time for axes.

    Attributes:
        length: one unit, in the spans' times.
        short: what stands behind a number on a narrow axis.
    """

    length: float
    unit: str
    short: str = ""


MILLISECONDS = Scale(1e6, "ms", " ms")  # for spans in nanoseconds
UNITS = Scale(1, "units of the costs")


def tick_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times the powers of ten that is not below `least`: what ticks lie apart."""
    power = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
