"""The boxes of a drawn figure: which texts and legends are cut, lie on another, or are struck by a line.

::

    ┌ figure ────────────┐
    │ title  ┌ legend ┐  │      faults    one line for each text or legend that a reader cannot read
    │ │   ●──●        │  │      unnamed   markers and lines that no legend explains, axes without a label
    │ └───────── M    └──│
    └────────────────────┘

A text counts if drawing the figure draws it, so that the labels of ticks outside an axis do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

NEAR = 1.0  # points: texts on one line that are nearer than this read as one
SLACK = 0.5  # points: what a box may lie on another without any ink being touched
CARD = 348  # CSS pixels: the width of a figure on a phone that is 390 wide
SMALLEST = 7.0  # CSS pixels: the height of a font there that can still be read
DOT = 1.01  # line widths: the longest dash that is a dot
WIDEST = 7.0  # inches: the text of a page of a paper


def drawn_texts(figure: Figure) -> list[Text]:
    """Draw the figure without its ink, and return the texts that were drawn."""
    FigureCanvasAgg(figure)
    seen: dict[int, Text] = {}
    draw = Text.draw

    def remember(text: Text, renderer: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            seen[id(text)] = text
        draw(text, renderer)

    with patch.object(Text, "draw", remember):
        figure.draw_without_rendering()
    return list(seen.values())


def unreadable(exhibits: list[Any]) -> list[str]:
    """Return what a reader cannot read in exhibits, with the names of their files."""
    return [
        f"{exhibit.stem}: {fault}"
        for exhibit in exhibits
        for fault in (*faults(exhibit.figure), *unnamed(exhibit.figure))
    ]


def faults(figure: Figure) -> list[str]:
    """Return what a reader cannot read: the texts and legends that are cut, overlap, are struck, or are too small."""
    return faults_of(figure, drawn_texts(figure))


def faults_of(figure: Figure, texts: list[Text]) -> list[str]:
    """The same, of a figure that has been drawn with these texts."""
    of_legend = {id(text): legend for legend in _legends(figure) for text in legend.findobj(Text)}
    boxes = [(f"text {text.get_text()!r}", Text.get_window_extent(text), of_legend.get(id(text))) for text in texts]
    legends = [(f"legend {_names(each)}", each.get_window_extent(), each) for each in _legends(figure)]
    point = figure.dpi / 72
    return [
        *(f"{name} is cut" for name, box, _ in boxes + legends if not _inside(figure.bbox, box)),
        *_overlaps(boxes, legends, point),
        *_on_panels(figure, legends, point),
        *_struck(figure, texts, point),
        *_sizes(figure, texts),
    ]


def _overlaps(boxes: list[Any], legends: list[Any], point: float) -> Iterator[str]:
    every = boxes + legends
    x0, y0, x1, y1 = np.array([box.extents for _, box, _ in every]).reshape(-1, 4).T
    beside = np.maximum.outer(x0, x0) - np.minimum.outer(x1, x1) < NEAR * point
    above = np.maximum.outer(y0, y0) - np.minimum.outer(y1, y1) < -SLACK * point
    for one, other in np.argwhere(np.triu(beside & above, 1)):
        (name, _, own), (another, _, its) = every[one], every[other]
        if own is None or own is not its or not (name.startswith("legend") or another.startswith("legend")):
            yield f"{name} lies on {another}"


def _on_panels(figure: Figure, legends: list[Any], point: float) -> Iterator[str]:
    for name, box, legend in legends:
        for axis in figure.axes:
            if legend.axes is None and axis.get_visible() and _meet(axis.get_window_extent(), box, point):
                yield f"{name} lies on the panel {_title(axis)!r}"


def _struck(figure: Figure, texts: list[Text], point: float) -> Iterator[str]:
    """Yield the texts within a panel that a line, a marker or an error bar strikes."""
    drawn = {id(text) for text in texts}
    for axis in figure.axes:
        shown = [text for text in axis.texts if id(text) in drawn]
        for text in shown:
            box = Text.get_window_extent(text).padded(-SLACK * point)
            if any(_strikes(line, box, point) for line in [*axis.get_lines(), *axis.collections] if line.get_visible()):
                yield f"text {text.get_text()!r} is struck by a line in the panel {_title(axis)!r}"


def _strikes(artist: Any, box: Bbox, point: float) -> bool:
    if isinstance(artist, LineCollection):
        return any(
            artist.get_transform().transform_path(path).intersects_bbox(box, False) for path in artist.get_paths()
        )
    if not isinstance(artist, Line2D) or not len(artist.get_xydata()):
        return False
    path = artist.get_transform().transform_path(artist.get_path())
    if artist.get_linestyle() != "None" and path.intersects_bbox(box, False):
        return True
    around = box.padded(point * artist.get_markersize() / 2)
    return artist.get_marker() != "None" and any(around.contains(x, y) for x, y in path.vertices)


def _sizes(figure: Figure, texts: list[Text]) -> Iterator[str]:
    inches = figure.get_figwidth()
    if inches > WIDEST:
        yield f"the figure is {inches:.1f} inches wide, more than {WIDEST:g}"
    for size in sorted({text.get_fontsize() for text in texts}):
        pixels = size / 72 * CARD / inches
        if pixels < SMALLEST:
            yield f"text of {size:g} points in {inches:.1f} inches is {pixels:.1f} pixels high on a phone"


def unnamed(figure: Figure) -> list[str]:
    """Return the markers and lines that no legend explains, and the axes whose quantity is not named."""
    handles = [line for legend in _legends(figure) for line in legend.legend_handles if isinstance(line, Line2D)]
    known = {
        look for line in handles for look in (_look(line), *([_dashes(line)] if line.get_linestyle() != "None" else []))
    }
    lines = [line for axis in figure.axes if axis.get_visible() for line in axis.get_lines()]
    shown = {_look(line) for line in lines if np.size(line.get_xdata()) and _is_drawn(line)}
    unexplained = [f"no legend explains {look}" for look in sorted(shown - known)]
    return [*unexplained, *_misdrawn(lines), *_without_label(figure)]


def _is_drawn(line: Line2D) -> bool:
    """Return whether a line shows anything of its own: not one that is error bars, or their caps."""
    marker = line.get_marker()
    return marker not in ("_", "|", 2, 3, 0, 1) and (line.get_linestyle() != "None" or marker not in ("None", "", None))


def _look(line: Line2D) -> str:
    """Return what tells a line from others: its marker and colour, or without a marker its dashes."""
    marker = line.get_marker()
    if line.get_markerfacecolor() == "white":
        return "hollow markers"
    if marker not in ("None", "", None):
        return f"marker {marker} {to_hex(line.get_color())}"
    return _dashes(line)


def _dashes(line: Line2D) -> str:
    dashes = line._dash_pattern[1]  # type: ignore[attr-defined]
    if not dashes:
        return f"line {to_hex(line.get_color())}"
    return "dots" if dashes[0] <= line.get_linewidth() * DOT else "dashes"


def _misdrawn(lines: Sequence[Line2D]) -> Iterator[str]:
    """Yield the lines that can be taken for what they are not: computed ones are dotted, without markers."""
    for line in lines:
        marker, kind = line.get_marker() not in ("None", "", None), _dashes(line)
        if line.get_linestyle() != "None" and np.size(line.get_xdata()) and (marker if kind == "dots" else not marker):
            if kind == "dots":
                yield "a dotted line, which stands for what was computed, has markers"
            elif kind == "dashes":
                yield "a dashed line, which stands for what was measured, has no markers"


def _without_label(figure: Figure) -> Iterator[str]:
    for axis in figure.axes:
        place = axis.get_subplotspec()
        if not axis.get_visible() or place is None:
            continue
        row = [each for each in figure.axes if (spot := each.get_subplotspec()) and spot.rowspan == place.rowspan]
        column = [each for each in figure.axes if (spot := each.get_subplotspec()) and spot.colspan == place.colspan]
        if not any(each.get_ylabel() or not _ticks(each.yaxis) for each in row):
            yield f"the vertical axis of {_title(axis)!r} has no label"
        if not any(each.get_xlabel() or not _ticks(each.xaxis) for each in column):
            yield f"the horizontal axis of {_title(axis)!r} has no label"


def _ticks(axis: Any) -> bool:
    """Return whether an axis has numbers as labels; names explain themselves."""
    labels = [label.get_text().replace("\N{MINUS SIGN}", "-") for label in axis.get_ticklabels()]
    return any(label.replace(".", "").replace("-", "").isdigit() for label in labels)


def _meet(one: Bbox, other: Bbox, point: float) -> bool:
    beside = max(one.x0, other.x0) - min(one.x1, other.x1) < NEAR * point
    above = max(one.y0, other.y0) - min(one.y1, other.y1) < -SLACK * point
    return beside and above


def _inside(outer: Any, box: Bbox) -> bool:
    return bool(outer.x0 <= box.x0 and box.x1 <= outer.x1 and outer.y0 <= box.y0 and box.y1 <= outer.y1)


def _legends(figure: Figure) -> list[Legend]:
    return [each for each in figure.findobj(Legend) if each.get_visible()]


def _names(legend: Legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def _title(axis: Axes) -> str:
    return axis.get_title(loc="left") or axis.get_title()
