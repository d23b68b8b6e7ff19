"""The look of each thing in a figure: its colour and marker, the same in all figures.

::

    gpipe   ──●──   blue         measured: always with markers, at the medians over launches
    1f1b    ──○──   orange       measured, hollow marker: disturbed, or the spread too wide
    gpipe   ·······   blue       computed: thin and dotted, never with a marker, in the colour of the measured line

A computed line comes from a closed form, from a simulation or from a fit; the legend says which. Measured
lines differ in marker as well as in colour. The colours are those of Okabe and Ito (seaborn's `colorblind`),
which differ for readers who are colour-blind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import seaborn as sns
from matplotlib.lines import Line2D

from microp.schedule.builders import ORDERS

SCHEDULES = ("gpipe", "1f1b", "zb_h1", "naive", "eager_1f1b", "interleaved", "dualpipe", "zb_v")  # of a fixed look
_COLOURS = [sns.color_palette("colorblind")[index] for index in (0, 1, 2, 3, 4, 5, 7, 9)]
_MARKERS, _OTHERS = "os^DvPX*<>hp", "<>hpd"  # `_OTHERS`: of schedules without a fixed look
DIFFERENT = len(_COLOURS)  # names; of more, some share a colour
COMPUTED: dict[str, Any] = {"linewidth": 1.1, "linestyle": (0, (1, 1.4))}  # the only dotted lines
THIN: dict[str, Any] = {"color": "0.6", "linewidth": 0.9}  # of what is known without a run, such as K
FRONT = Line2D([], [], color="0.45", lw=1.0, label="Pareto front: filled, clearly faster than all with less memory")
_HOLLOW: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "linestyle": ""}
TOO_WIDE = Line2D([], [], color="0.4", label="hollow: disturbed, or spread too wide", **_HOLLOW)


class Look(NamedTuple):
    """The colour, marker and line style of one measured thing."""

    colour: Any
    marker: str
    line: str = "-"


def looks(names: Iterable[Any]) -> dict[Any, Look]:
    """Return a look for each name; each of the usual schedules has its own, the same in all figures.

    Beside or instead of these, microp's other schedules have free colours, and markers that no usual one has.
    """
    wanted = in_order(names)
    numbers = {name: SCHEDULES.index(name) for name in wanted if name in SCHEDULES}
    free = (number for number in range(len(wanted) + len(SCHEDULES)) if number not in numbers.values())
    numbers |= {name: next(free) for name in wanted if name not in numbers}
    others = _MARKERS if ORDERS.keys().isdisjoint(wanted) else _OTHERS
    markers = {name: _MARKERS if name in SCHEDULES else others for name in wanted}
    return {  # a colour's second name is dashed
        name: Look(_COLOURS[n % DIFFERENT], markers[name][n % len(markers[name])], "--"[: 1 + n // DIFFERENT])
        for name, n in numbers.items()
    }


def in_order(names: Iterable[Any]) -> list[Any]:
    """Return the names without repetition: the usual schedules in their usual order, then the others as given."""
    wanted = list(dict.fromkeys(names))
    return [name for name in SCHEDULES if name in wanted] + [name for name in wanted if name not in SCHEDULES]


def line(label: str, style: Any) -> Line2D:
    """Return a legend's entry for lines of any colour and this style."""
    return Line2D([], [], color="0.25", linestyle=style, label=label)


def dotted(label: str) -> Line2D:
    """Return a legend's entry for computed lines; `label` says what computed them, and under which assumptions."""
    return Line2D([], [], color="0.25", label=label, **COMPUTED)


def stroke(label: str) -> Line2D:
    """Return a legend's entry for upright strokes, which mark what was computed for a marker."""
    return Line2D([], [], color="0.1", marker="|", markersize=9, linestyle="", label=label)


def thin(label: str) -> Line2D:
    """Return a legend's entry for thin grey lines, which mark a value that is known without a run."""
    return Line2D([], [], label=label, **THIN)
