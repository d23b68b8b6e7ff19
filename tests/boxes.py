"""Finds what a reader of a figure cannot read: texts and legends that are cut, lie on another, or are too small.

A text counts if drawing the figure draws it, so that the labels of ticks outside an axis do not.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any
from unittest.mock import patch

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox

NEAR = 1.0  # points: texts on one line that are nearer than this read as one
SLACK = 0.5  # points: what a box may lie on another without any ink being touched
SHARE = 0.6  # of its width that a figure has at least on a page (`min-width` in report.css)
SMALLEST = 7.5  # CSS pixels: the height of a font there that can still be read on a phone
WIDEST, HIGHEST = 7.0, 9.0  # inches: the text of a page of a paper


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
    return [f"{exhibit.stem}: {fault}" for exhibit in exhibits for fault in faults(exhibit.figure)]


def faults(figure: Figure) -> list[str]:
    """Return what a reader cannot read in a figure."""
    return list(faults_of(figure, drawn_texts(figure)))


def faults_of(figure: Figure, texts: list[Text]) -> Iterator[str]:
    """Yield the same, of a figure that has been drawn with these texts."""
    point = figure.dpi / 72
    legends = [legend for legend in figure.findobj(Legend) if legend.get_visible()]
    in_legends = {id(text) for legend in legends for text in legend.findobj(Text)}
    boxes = [(f"text {text.get_text()!r}", Text.get_window_extent(text)) for text in texts]
    apart = [box for box, text in zip(boxes, texts, strict=True) if id(text) not in in_legends]
    frames = [("a legend", legend.get_window_extent()) for legend in legends]
    panels = [("a panel", axis.get_window_extent()) for axis in figure.axes if axis.get_visible()]
    outside = [("a legend of the figure", legend.get_window_extent()) for legend in legends if legend.axes is None]
    for name, box in boxes + frames:
        if min(box.x0 - figure.bbox.x0, box.y0 - figure.bbox.y0, figure.bbox.x1 - box.x1, figure.bbox.y1 - box.y1) < 0:
            yield f"{name} is cut"
    pairs = [*combinations(boxes, 2), *combinations(frames, 2)]
    pairs += [(one, other) for one in apart for other in frames] + [(one, other) for one in outside for other in panels]
    yield from (f"{one} lies on {other}" for (one, box), (other, its) in pairs if _meet(box, its, point))
    inches, high = figure.get_size_inches()
    if inches > WIDEST or high > HIGHEST:
        yield f"the figure is {inches:.1f} inches wide and {high:.1f} high, more than {WIDEST:g} or {HIGHEST:g}"
    for size in sorted({text.get_fontsize() for text in texts}):
        if size / 72 * 96 * SHARE < SMALLEST:
            yield f"text of {size:g} points is {size / 72 * 96 * SHARE:.1f} pixels high on a phone"


def _meet(one: Bbox, other: Bbox, point: float) -> bool:
    beside = max(one.x0, other.x0) - min(one.x1, other.x1) < NEAR * point
    above = max(one.y0, other.y0) - min(one.y1, other.y1) < -SLACK * point
    return beside and above
