"""The building blocks of all figures: sheets of panels, lines with intervals, axes and legends whose text fits.

::

    ┌ 6.4 inches ───────────────────────┐   as wide as a page's text, so that all figures have letters
    │  names of the lines, in columns   │   of one size on a page, in a paper and on a phone
    │  panel           panel            │
    │  panel           panel            │   two panels in a row, more rows for more panels
    │  ····· what is computed, and how  │
    └───────────────────────────────────┘

See `looks` for colours and markers, `scales` for axes, `fitting` for the measuring of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from analysis import fitting
from analysis.looks import COMPUTED, FRONT, TOO_WIDE, Look, in_order, looks
from analysis.words import TIME, undecided
from microp.results import ALIKE

Numbers = NDArray[np.floating[Any]]
TEXTS = ("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
STYLE: dict[str, Any] = {
    **sns.axes_style("ticks"),
    **dict.fromkeys(TEXTS, fitting.POINTS),
    "axes.formatter.use_mathtext": False,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # just above the panel, where matplotlib would look for room
    "axes.linewidth": 0.7,
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib, so that files have the same bytes everywhere
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
    "svg.fonttype": "path",
    "svg.hashsalt": "microp",  # makes the ids in a file the same every time
    "text.hinting": "none",  # so that a text is as wide in a PNG as in an SVG
    "text.parse_math": False,  # a user's name may have a $
}
mpl.rcParams.update(cast(Any, STYLE))
ONE_COLUMN, TWO_COLUMNS = 3.3, 6.4  # inches, of a paper
WIDTH = TWO_COLUMNS  # of the figures that are drawn from now on; a command with --columns sets it
# inches: the height of a figure at most, with its caption a page, and of its panels before legends
PAGE, ROOM = 9.0, 7.4
HEIGHT, LEAST = 2.3, 1.75  # of a panel, with its title and the names of its axes, and if a page has many
SHORT = 0.2  # inches to each side of a single computed point
BESIDE, ABOVE = 0.8, 0.75  # of a panel's width and height: what its title and the labels of its axes take
LINE, GAPS = 2.6, 2.8  # letters of a legend's column: what the sample of a line and the space around it take
MARKER = 4.0  # points from the centre of a marker to its edge
_ROUND = [np.array([np.cos(turn), np.sin(turn)]) for turn in np.linspace(0, 2 * np.pi, 24, endpoint=False)]
# of a marker, where its number may stand: next to it, or farther away
SIDES = [far * side / abs(side).max() for far in (1, 1.5, 2, 3, 4) for side in _ROUND]
CHUNKS = "microbatches M"


# --- sheets ----------------------------------------------------------------------------------------


def sheet(rows: int = 1, columns: int = 1, height: float = HEIGHT, **layout: Any) -> tuple[Figure, Any]:
    """Return a figure as wide as all figures and the array of its axes, of shape (rows, columns).

    `height` is that of one panel, in inches, if a page has room for it; `layout` goes to `Figure.subplots`.
    """
    figure = Figure(figsize=(WIDTH, min(PAGE, height * rows)), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **layout)


def panels(number: int, height: float = HEIGHT, **layout: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with two panels per row, and the panels in reading order; a single one has the whole row.

    A figure of one column of a paper has one panel per row; of very many panels each has more, to fit on a page.
    """
    fewest = min(number, 2 if WIDTH > ONE_COLUMN else 1)
    columns = next(across for across in count(fewest) if -(-number // across) * LEAST <= ROOM)
    figure, grid = sheet(-(-number // columns), columns, height, **layout)
    for axis in grid.flat[number:]:
        axis.remove()
    return figure, list(grid.flat[:number])


def room(axis: Axes) -> float:
    """Return about the width of a panel between its axes, in inches."""
    place = axis.get_subplotspec()
    each = WIDTH / (place.get_gridspec().ncols if place else 1)
    return each - min(BESIDE, 0.43 * each)


def titled(axis: Axes, title: str = "", x: str = "", y: str = "", own: bool = False) -> None:
    """Set the title of a panel and the names of its axes, with units, broken into lines where they are too long.

    A vertical axis that is not the panel's `own` is named in the first panel of a row only.
    """
    place = axis.get_subplotspec()
    if place is None:
        return
    height = min(ROOM, cast(Figure, axis.get_figure(root=True)).get_figheight()) / place.get_gridspec().nrows - ABOVE
    axis.set_title(fitting.wrapped(title, room(axis) + 0.15))  # it may end above the space between panels
    axis.set_xlabel(fitting.wrapped(x, room(axis)))
    if own or place.is_first_col():
        axis.set_ylabel(fitting.wrapped(y, height))


def heighten(where: Axes | Figure, inches: float) -> None:
    """Make a figure higher, for what needs room beside its panels, but not higher than a page: then they are lower."""
    figure = where if isinstance(where, Figure) else cast(Figure, where.get_figure(root=True))
    figure.set_figheight(min(PAGE, figure.get_figheight() + inches))


# --- what is drawn ---------------------------------------------------------------------------------


def points(axis: Axes, table: pd.DataFrame, x: str, y: str, look: Look, label: str) -> None:
    """Draw a line through the medians `y` over `x` of a table of `over_launches`, with their intervals.

    Those that are too wide get hollow markers.
    """
    table = table.dropna(subset=[y]).sort_values(x, kind="stable")
    if table.empty:
        return
    at, middle, low, high = (table[name].to_numpy(dtype=float) for name in (x, y, f"{y}.low", f"{y}.high"))
    # seaborn's pointplot would aggregate the launches again; the figure's table has the same medians and intervals.
    _bars(axis, look, "_", at, low, high)
    axis.plot(at, middle, color=look.colour, marker=look.marker, linestyle=look.line, label=label)
    hollow(axis, at, middle, table[f"{y}.wide"].to_numpy(dtype=bool), look)


def across(axis: Axes, table: pd.DataFrame, value: str, at: Any, look: Look, label: str) -> None:
    """Draw medians along the horizontal axis, each at its place `at` of the vertical one, with their intervals."""
    middle, low, high = (table[name].to_numpy(dtype=float) for name in (value, f"{value}.low", f"{value}.high"))
    at = np.asarray(at, dtype=float)
    _bars(axis, look, "|", at, low, high)
    axis.plot(middle, at, color=look.colour, marker=look.marker, linestyle="", label=label)
    hollow(axis, middle, at, table[f"{value}.wide"].to_numpy(dtype=bool), look)


def hollow(axis: Axes, x: Numbers, y: Numbers, wide: NDArray[np.bool_], look: Look, **size: Any) -> None:
    """Draw hollow markers over those that are not to be relied on: disturbed, or with too wide a spread."""
    if wide.any():
        axis.plot(x[wide], y[wide], look.marker, color=look.colour, markerfacecolor="white", **size)


def _bars(axis: Axes, look: Look, cap: str, at: Numbers, low: Numbers, high: Numbers) -> None:
    """Draw intervals with caps, "_" for upright ones or "|", as one line with gaps: `errorbar` takes four artists."""
    along, ends = (np.column_stack([*two, np.full(len(at), np.nan)]).ravel() for two in ((at, at), (low, high)))
    places = (along, ends) if cap == "_" else (ends, along)
    axis.plot(*places, color=look.colour, marker=cap, markersize=4, linewidth=0.9)


def strokes(axis: Axes, values: Any, at: Any) -> None:
    """Draw what was computed for the medians of `across`: short upright strokes."""
    axis.plot(values, at, "|", color="0.1", markersize=9, zorder=3)


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
    """Draw one line per value of `by` in `named`, with what was computed for it behind it, dotted in the same colour.

    The table is one of `over_launches`, and has the column `formula` of what was computed, if there is one. `label` is
    the name of a line in the legend, with {} for the value of `by`.
    """
    needed = dict.fromkeys([by, x, y, f"{y}.low", f"{y}.high", f"{y}.wide", *filter(None, [formula])])
    table = table[list(needed)].sort_values(x)
    for value, look in named.items():
        own = table[table[by] == value]
        for _, part in own.groupby(lambda at, look=look: look.line or at) if formula is not None else ():
            computed(axis, part[x], part[formula], look.colour)  # names have nothing between them
        points(axis, own, x, y, look, label.format(value))


def number_points(
    axis: Axes, table: pd.DataFrame, x: str, y: str, by: str, named: Mapping[Any, Look], all_of_them: bool = True
) -> None:
    """Write the number that begins a value of `by` beside its point, where it and a thin line to it cover least.

    For figures with more names than colours, whose legend has the numbers. All else in the figure has been drawn.
    If not `all_of_them` are wanted, those without room are left out.
    """
    figure = cast(Any, axis.get_figure(root=True))
    figure.get_layout_engine().execute(figure)  # gives the panel its place
    point, spots = figure.dpi / 72, list(zip(table[x], table[y], strict=True))
    places = axis.transData.transform(spots)
    fronts = (line for line in axis.get_lines() if line.get_label() == "_front")
    lines = [line.get_path().transformed(axis.transData) for line in fronts]
    taken = [Bbox([place - MARKER * point, place + MARKER * point]) for place in places]
    for spot, own, place, name in zip(spots, list(taken), places, table[by], strict=True):
        number, found = name.split(maxsplit=1)[0], list[Any]()
        half = point * np.array([36 * fitting.width(number) + 1, 0.6 * fitting.POINTS])
        for side in SIDES:
            step = side * (half + MARKER * point)
            box, leader = Bbox([place + step - half, place + step + half]), Path(place + np.outer((0.3, 0.8), step))
            is_out = not all(axis.bbox.contains(*corner) for corner in (box.min, box.max))
            met = 9 * (box.count_overlaps(taken) + 9 * is_out)
            met += sum(leader.intersects_bbox(each, False) for each in taken if each is not own)
            met += sum(line.intersects_bbox(box, False) + line.intersects_path(leader, False) for line in lines)
            found.append((met, len(found), step, box, leader))
        met, _, step, box, leader = min(found)
        if met >= 9 and not all_of_them:  # it would lie on another, or outside
            continue
        taken.append(box)
        lines.append(leader)
        colour: Any = 0.7 * np.array(mpl.colors.to_rgb(named[name].colour))
        thin = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": MARKER}
        style: Any = {"textcoords": "offset points", "color": colour, "ha": "center", "va": "center"}
        axis.annotate(number, spot, step / point, arrowprops=thin, **style)


def line_panels(
    groups: Sequence[tuple[str, pd.DataFrame]],
    x: str,
    y: str,
    by: str,
    names: tuple[str, str],
    keys: Iterable[Artist],
    formula: str | None = None,
    label: str = "{}",
) -> Figure:
    """Return a figure with one panel per group, a title and its rows, and in each one line per value of `by`.

    `names` are those of the two axes, with units; `keys` are for the legend below; `formula`, `label`: see `lines`.
    """
    figure, axes = panels(len(groups), HEIGHT if len(groups) > 1 else 2.8)  # alone it is as wide as two
    named = looks(sorted(pd.concat([rows[by] for _, rows in groups]).unique()))
    for axis, (title, rows) in zip(axes, groups, strict=True):
        lines(axis, rows, x, y, by, named, formula, label)
        titled(axis, title, *names)
    legend(figure, keys)
    return figure


def computed(axis: Axes, x: Iterable[float], y: Iterable[float], colour: Any) -> None:
    """Draw what was computed, unless it is all NaN: a thin dotted line without markers, in front of the measured.

    A single point, which has no line, gets a short dotted one across it.
    """
    known = [(at, height) for at, height in zip(x, map(float, y), strict=True) if not np.isnan(height)]
    if len(known) > 1:
        axis.plot(*zip(*known, strict=True), color=colour, zorder=2.5, **COMPUTED)
    elif known:
        scale = cast(Figure, axis.get_figure(root=True)).dpi_scale_trans
        across = LineCollection([[(-SHORT, 0), (SHORT, 0)]], offsets=known, offset_transform=axis.transData)
        across.set(transform=scale, color=colour, zorder=2.5, **COMPUTED)
        axis.add_collection(across)


def on_front(table: pd.DataFrame, by: Sequence[str], x: str, runs: pd.DataFrame, point: list[str]) -> pd.Series[bool]:
    """Return which rows are on the Pareto front, of less `x` and less step time, of the rows that are equal in `by`.

    Each is faster than the one before it by more than a hundredth, and than the spread of its launches or steps: `runs`
    has the launches of each row, which has the keys `point`. Rows that are too wide or disturbed, whose markers are
    hollow, do not count, nor do those that are not clearly faster than one of these with less `x`; one is no front.
    """
    front, launches = [], dict(iter(runs.groupby(point)))
    for _, own in table.dropna(subset=[x, TIME]).sort_values([x, TIME], kind="stable").groupby(list(by)):
        best = None
        is_hollow = own[f"{TIME}.wide"].astype(bool)
        for at, row in own[~is_hollow].iterrows() if (~is_hollow).sum() > 1 else ():
            if (is_hollow & (own[x] < row[x]) & (own[TIME] <= ALIKE * row[TIME])).any():
                continue
            of = launches[tuple(row[point])]
            if best is None or (ALIKE * row[TIME] < best[TIME] and not undecided(of, launches[tuple(best[point])])):
                best = row
                front.append(at)
    return pd.Series(table.index.isin(front), table.index)


def about_front(table: pd.DataFrame, more: str = "") -> str:
    """Return the sentence on the fronts of a figure's table, which ends with `more`; nothing if there is none."""
    text = "A line is a panel's Pareto front of filled markers, each faster than all with less memory by over 1 %"
    return f"{text} and its spread{more}. " if table["front"].any() else ""


def draw_front(axis: Axes, best: pd.DataFrame, x: str, y: str) -> None:
    """Draw a line through the rows of a Pareto front, if they are several; `legend` explains it."""
    if len(best) > 1:
        best, wide = best.sort_values(x), FRONT.get_linewidth()
        axis.plot(best[x], best[y], label="_front", zorder=1.5, color=FRONT.get_color(), linewidth=wide)


def beside(table: pd.DataFrame, x: str, by: str, named: Iterable[Any], doubles: bool = True) -> pd.DataFrame:
    """Return the table with `x` shifted a little for each value of `by`, for an axis that is logarithmic, or is not.

    Coinciding points of different lines then lie side by side.
    """
    places = {name: place for place, name in enumerate(named)}
    shift = (table[by].map(places) - (len(places) - 1) / 2) * min(0.05, 0.4 / max(1, len(places)))
    return table.assign(
        **{x: table[x] * 2**shift if doubles else table[x] + shift * (table[x].max() - table[x].min()) / 4}
    )


# --- legends ---------------------------------------------------------------------------------------


def legend(figure: Figure, extra: Iterable[Artist] = ()) -> None:
    """Add a legend of all names above the panels, each once, and one of `extra` below them.

    The one below also explains the Pareto front and hollow markers, if there are any.
    """
    found: dict[str, Artist] = {}
    for axis in figure.axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    _legend(figure, "upper", [(name, found[name]) for name in in_order(found)])
    shown = [line for axis in figure.axes for line in axis.get_lines() if np.size(line.get_xdata())]
    keys = [*extra, *[FRONT] * any(line.get_label() == "_front" for line in shown)]
    if any(line.get_markerfacecolor() == "white" for line in shown):
        keys.append(TOO_WIDE)
    _legend(figure, "lower", [(str(key.get_label()), key) for key in keys])


def head(figure: Figure, text: str) -> None:
    """Write a line above the names, once."""
    above = next((legend for legend in figure.legends if legend.get_label() == "upper"), None)
    if text and above is None:
        above = figure.legend([], [], loc=cast(Any, "outside upper center"))
        above.set_label("upper")
    if text and above and not above.get_title().get_text():
        title = fitting.wrapped(text, WIDTH - 0.3)
        above.set_title(title)
        heighten(figure, (1 + title.count("\n")) * fitting.LINE * fitting.POINTS / 72)


def _legend(figure: Figure, where: str, entries: Sequence[tuple[str, Artist]]) -> None:
    """Add a legend, and make the figure higher by its height."""
    if not entries:
        return
    handles = [handle for _, handle in entries]
    long = 1.0 if all(isinstance(one, Line2D) and one.get_linestyle() == "None" for one in handles) else LINE
    aside = (long + GAPS) * fitting.POINTS / 72
    names = [fitting.wrapped(name, WIDTH - aside - 0.3) for name, _ in entries]
    widths = [fitting.width(name) for name in names]
    parts = ((count, np.array_split(widths, count)) for count in range(2, len(names) + 1))  # columns, filled one by one
    columns = max((count for count, part in parts if sum(max(own) + aside for own in part) <= WIDTH), default=1)
    height = -(-len(names) // columns) + sum(name.count("\n") for name in names)
    heighten(figure, 0.1 + height * fitting.LINE * 1.15 * fitting.POINTS / 72)
    placed = figure.legend(handles, names, loc=cast(Any, f"outside {where} center"), ncols=columns, handlelength=long)
    placed.set_label(where)
