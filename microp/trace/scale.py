"""Units of time for drawings."""

from __future__ import annotations

from typing import NamedTuple


class Scale(NamedTuple):
    """A unit of time for axes.

    Attributes:
        length: one unit, in the spans' times.
        unit: its name.
        short: what stands behind a number on a narrow axis.
    """

    length: float
    unit: str
    short: str = ""


MILLISECONDS = Scale(1e6, "ms", " ms")  # for spans in nanoseconds
UNITS = Scale(1, "units of the costs")
