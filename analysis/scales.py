"""Axes whose labels are plain numbers and names that do not touch.

::

    powers        ┴──┴──┴──┴──┴──┴     at the values that were run: 1 2 4 8 16 32
    evenly        ┴┴──┴────┴───────┴   the same on a linear axis
    logarithmic   ┴────┴──┴─────┴      at 1, 2, 5, 10, ..., or evenly if the values are close together
    categories    ┴─────┴─────┴        names below an axis: broken, or upright and shortened if too long
    name_rows     ├ names beside an axis, from the top
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from analysis import fitting, plot

UPRIGHT, ROW = 1.2, 1.3  # inches: the longest name that is written upright, and beside a row


def powers(axis: Axes, values: Iterable[float]) -> None:
    """Make the horizontal axis logarithmic to base 2, with ticks at those of `values` whose labels have room."""
    ticks = sorted(set(values))
    wide = 1.6 if len(ticks) == 1 else (ticks[-1] / ticks[0]) ** 0.06 * 1.05
    axis.set_xscale("log", base=2)
    axis.set_xlim(ticks[0] / wide, ticks[-1] * wide)
    _tick(axis.xaxis, ticks, plot.room(axis))


def evenly(axis: Axes, values: Iterable[float]) -> None:
    """Make the horizontal axis linear, with ticks at those of `values` whose labels have room."""
    ticks = sorted(set(values))
    around = 0.06 * (ticks[-1] - ticks[0]) or 0.5
    axis.set_xlim(ticks[0] - around, ticks[-1] + around)
    _tick(axis.xaxis, ticks, plot.room(axis))


def logarithmic(scale: Axis, values: Iterable[float]) -> None:
    """Make an axis logarithmic, with room around `values` and plain numbers as ticks."""
    if not (known := [float(value) for value in values if value > 0]):
        return
    axis = scale.axes
    across = scale is axis.xaxis
    around = max(1.1, (max(known) / min(known)) ** 0.08)
    low, high = min(known) / around, max(known) * around
    (axis.set_xscale if across else axis.set_yscale)("log")
    (axis.set_xlim if across else axis.set_ylim)(low, high)
    steps = (1, 2, 3, 5, 7) if high / low < 12 else (1, 2, 5) if high / low < 300 else (1,)
    ticks: Iterable[float] = (step * 10.0**power for power in range(-9, 12) for step in steps)
    if high / low < 4:
        ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    ticks = [float(tick) for tick in ticks if low <= tick <= high]
    _tick(scale, ticks, plot.room(axis) if across else None)


def _tick(scale: Axis, ticks: Sequence[float], inches: float | None) -> None:
    """Set the ticks, with plain numbers; of a horizontal axis that is `inches` long, only those with room."""
    if inches is not None and ticks:
        even = scale.get_scale() == "linear"
        low, high, *at = (float(value if even else np.log(value)) for value in (*scale.get_view_interval(), *ticks))
        places = [(place - low) / (high - low) * inches for place in at]
        ticks = [ticks[index] for index in fitting.apart(places, [fitting.width(f"{tick:g}") for tick in ticks])]
    scale.set_major_locator(FixedLocator(ticks))
    scale.set_minor_locator(NullLocator())
    scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def categories(axis: Axes, names: Sequence[str]) -> None:
    """Name the places 0, 1, 2, ... of the horizontal axis; long names are broken, shortened or turned upright."""
    each = plot.room(axis) / max(1, len(names)) - fitting.GAP
    upright = any(fitting.width(word.strip()) > each for name in names for word in fitting.WORDS.findall(name))
    fit = [fitting.shortened(name, UPRIGHT) if upright else fitting.wrapped(name, each) for name in names]
    axis.set_xticks(range(len(names)), fit, rotation=90 if upright else 0)
    axis.set_xlim(-0.5, len(names) - 0.5)
    place = axis.get_subplotspec()
    if place is None or place.is_first_col():  # once for a row of panels
        lines = max((name.count("\n") for name in fit), default=0)
        tall = max((fitting.width(name) for name in fit), default=0.0)
        plot.heighten(axis, tall if upright else lines * fitting.LINE * fitting.POINTS / 72)


def name_rows(axis: Axes, names: Sequence[str], inches: float = ROW) -> None:
    """Name the places 0, 1, 2, ... of the vertical axis, from the top; long names are shortened."""
    axis.set_yticks(range(len(names)), [fitting.shortened(name, inches) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
