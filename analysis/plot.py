"""The style and the building blocks of all figures, which are legible without colour.

::

    gpipe   ──●──   blue     filled marker: the median over launches, with its interval as a bar
    1f1b    ──■──   orange   hollow marker: the spread is too wide to rely on
    zb_h1   ──▲──   green    thin dashed line: theory, in the colour of the measured line

Lines differ in marker and dashes as well as in colour. The colours are those of Okabe and Ito
(seaborn's `colorblind`), and a schedule looks the same in every figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

STYLE: dict[str, Any] = {
    **sns.axes_style("ticks"),
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib, so that files have the same bytes everywhere
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "microp",  # makes the ids in a file the same every time
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
mpl.rcParams.update(cast(Any, STYLE))
CHUNKS = "microbatches M"
PANEL = (3.3, 2.6)  # width and height of one panel, in inches


class Look(NamedTuple):
    """The colour, marker and line style of one thing."""

    colour: Any
    marker: str
    line: Any


_COLOURS = [sns.color_palette("colorblind")[index] for index in (0, 1, 2, 3, 4, 5, 7, 9)]
_MARKERS = "os^DvPX*<>hp"
_LINES: list[Any] = ["-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2, 1, 2)), (0, (2, 2))]
SCHEDULES = ("gpipe", "1f1b", "zb_h1", "naive", "eager_1f1b", "interleaved", "zb_h2", "zb_v")
THEORY = Line2D([], [], color="0.25", linewidth=0.9, linestyle=(0, (4, 2)), label="theory")
FRONT = Line2D([], [], color="0.45", linewidth=1.0, label="Pareto front")
TOO_WIDE = Line2D(
    [], [], color="0.4", marker="o", markerfacecolor="white", linestyle="", label="hollow: spread too wide"
)


def looks(names: Iterable[Any]) -> dict[Any, Look]:
    """Return a look for each name; each of the usual schedules has its own, the same in all figures."""
    wanted = in_order(names)
    numbers = {name: SCHEDULES.index(name) for name in wanted if name in SCHEDULES}
    free = (number for number in range(len(wanted) + len(SCHEDULES)) if number not in numbers.values())
    numbers |= {name: next(free) for name in wanted if name not in numbers}
    return {
        name: Look(
            _COLOURS[numbers[name] % len(_COLOURS)],
            _MARKERS[numbers[name] % len(_MARKERS)],
            _LINES[numbers[name] % len(_LINES)],
        )
        for name in wanted
    }


def sheet(rows: int = 1, columns: int = 1, panel: tuple[float, float] = PANEL, **layout: Any) -> tuple[Figure, Any]:
    """Return a figure and the array of its axes, of shape (rows, columns).

    Args:
        panel: width and height of one panel, in inches.
        layout: further arguments of `Figure.subplots`, such as `sharey=True`.
    """
    figure = Figure(figsize=(panel[0] * columns, panel[1] * rows + 0.4), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **layout)


def points(axis: Axes, table: pd.DataFrame, x: str, y: str, look: Look, label: str) -> None:
    """Draw a line through the medians `y` over `x`, with their intervals; too wide ones get hollow markers.

    Args:
        table: a table from `statistics.over_launches`.
    """
    table = table.dropna(subset=[y]).sort_values(x)
    if table.empty:
        return
    # seaborn's pointplot would aggregate the launches again; the figure's table has the same medians and intervals.
    below, above = table[y] - table[f"{y}.low"], table[f"{y}.high"] - table[y]
    axis.errorbar(table[x], table[y], [below, above], color=look.colour, linestyle="", capsize=2, elinewidth=0.9)
    axis.plot(table[x], table[y], color=look.colour, marker=look.marker, linestyle=look.line, label=label)
    wide = table[table[f"{y}.wide"].astype(bool)]
    axis.plot(wide[x], wide[y], color=look.colour, marker=look.marker, markerfacecolor="white", linestyle="")


def lines(
    axis: Axes,
    table: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    named: Mapping[Any, Look],
    formula: str | None = None,
    label: str = "{}",
) -> None:
    """Draw one line per value of `by`, with its theory behind it in the same colour.

    Args:
        table: a table from `statistics.over_launches`, which has `y`.
        named: the values of `by` to draw, with their looks.
        formula: the column of the theory, if there is one.
        label: the name of a line in the legend, with {} for the value of `by`.
    """
    for value, look in named.items():
        own = table[table[by] == value].sort_values(x)
        if formula is not None:
            theory(axis, own[x], own[formula], look.colour)
        points(axis, own, x, y, look, label.format(value))


def for_each_chunks(table: pd.DataFrame, x: str, y: str, formula: str, xlabel: str, ylabel: str) -> Figure:
    """Return a figure with one panel per M and, in each, one line per schedule with its theory."""
    chunks = sorted(table["chunks"].unique())
    figure, axes = sheet(1, len(chunks))
    for axis, number in zip(axes[0], chunks, strict=True):
        own = table[table["chunks"] == number]
        lines(axis, own, x, y, "schedule", looks(sorted(own["schedule"].unique())), formula)
        axis.set(title=f"M = {number}", xlabel=xlabel)
    axes[0, 0].set_ylabel(ylabel)
    legend(figure, [THEORY])
    return figure


def theory(axis: Axes, x: Iterable[float], y: Iterable[float], colour: Any = "0.25") -> None:
    """Draw a thin dashed line without markers."""
    axis.plot(list(x), list(y), color=colour, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1.5)


def front(table: pd.DataFrame, x: str, y: str) -> list[Any]:
    """Return the labels of the rows on the Pareto front, where both `x` and `y` are to be small, by ascending `x`."""
    best: list[Any] = []
    for label, row in table.dropna(subset=[x, y]).sort_values([x, y], kind="stable").iterrows():
        if not best or row[y] < table.at[best[-1], y]:
            best.append(label)
    return best


def scatter(axis: Axes, table: pd.DataFrame, x: str, y: str, by: str, named: dict[Any, Look]) -> None:
    """Draw one marker per row and a line through the Pareto front; rows with the same value of `by` look the same.

    Args:
        table: a table from `statistics.over_launches`, which has `y`.
    """
    lines(axis, table, x, y, by, {name: look._replace(line="") for name, look in named.items()})
    best = table.loc[front(table, x, y)]
    axis.plot(best[x], best[y], color=FRONT.get_color(), linewidth=FRONT.get_linewidth(), zorder=1.5)


def powers(axis: Axes, values: Iterable[float], label: str) -> None:
    """Make the horizontal axis logarithmic to base 2, with ticks at `values` only."""
    ticks = sorted(set(values))
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    plain(axis.xaxis)
    axis.set_xlabel(label)


def plain(*scales: Axis) -> None:
    """Label the ticks of logarithmic scales with plain numbers instead of powers."""
    for scale in scales:
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def beside(table: pd.DataFrame, x: str, by: str, named: Iterable[Any]) -> pd.DataFrame:
    """Return the table with `x` shifted a little for each value of `by`, for a logarithmic axis.

    Coinciding points of different lines then lie side by side.
    """
    places = {name: place for place, name in enumerate(named)}
    shift = table[by].map(places) - (len(places) - 1) / 2
    return table.assign(**{x: table[x] * 2 ** (0.05 * shift)})


def legend(figure: Figure, extra: Iterable[Line2D] = ()) -> None:
    """Add one legend above all panels, with each name once, and with a key to hollow markers if there are any."""
    found: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    found = {name: found[name] for name in in_order(found)} | {str(line.get_label()): line for line in extra}
    if any(_is_hollow(line) for axis in figure.axes for line in axis.get_lines()):
        found[str(TOO_WIDE.get_label())] = TOO_WIDE
    columns = _fitting([len(name) for name in found], figure.get_figwidth())
    figure.legend(list(found.values()), list(found), loc="outside upper center", ncols=columns, handlelength=2.8)


def _fitting(letters: list[int], inches: float) -> int:
    """Return the largest number of columns that fits names of these lengths; columns are filled one by one."""
    for columns in range(len(letters), 1, -1):
        height = -(-len(letters) // columns)
        longest = (max(letters[top : top + height]) for top in range(0, len(letters), height))
        if sum(0.65 + 0.075 * letter for letter in longest) <= inches:  # a handle and its name
            return columns
    return 1


def in_order(names: Iterable[Any]) -> list[Any]:
    """Return the names without repetition: the usual schedules in their usual order, then the others as given."""
    wanted = list(dict.fromkeys(names))
    return [name for name in SCHEDULES if name in wanted] + [name for name in wanted if name not in SCHEDULES]


def _is_hollow(line: Line2D) -> bool:
    return line.get_markerfacecolor() == "white" and np.size(line.get_xdata()) > 0
