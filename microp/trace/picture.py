"""Draws timelines as a small picture of pixels, in some milliseconds: actions have a colour and no name.

::

    replayed: 62.1 ms, bubble 0.205
    rank 0 ▐██▐██▐██      ▐████▐████▐████
    rank 1    ▐██▐██▐██▐████▐████▐████
    measured: 63.0 ms, bubble 0.211
    rank 0 ▐██▐██▐██       ▐████▐████▐████
    rank 1    ▐███▐██▐██▐████▐████▐████
           0         20        40        60
           ms; light: F, dark: B and I, orange: W

It is for W&B, after each run. `drawing.figure` names the actions and takes many times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from microp.trace.look import COLOURS, MILLISECONDS, Scale, tick_step
from microp.trace.metrics import bubble_fraction, makespan
from microp.trace.spans import Span

WIDTH = 800  # pixels, as all lengths here
MARGIN = 10
LETTERS = 15  # the size of text
LINE = 26  # of text, with the room around it
ROW, BAR = 31, 25  # the height of a rank, and of its actions
TICKS = 8  # at most
GREY = "#b0b0b0"


def picture(panels: Mapping[str, Sequence[Span]], path: Path, scale: Scale = MILLISECONDS) -> None:
    """Draw timelines one above the other on a common time axis, each from its first start, as a PNG.

    Args:
        panels: name -> spans, e.g. `replayed` and `measured`.
    """
    from PIL import Image, ImageDraw, ImageFont  # a rank needs none of it

    ranks = 1 + max(span.rank for spans in panels.values() for span in spans)
    high = MARGIN + len(panels) * (LINE + ranks * ROW) + 2 * LINE
    sheet = Image.new("RGB", (WIDTH, high), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(LETTERS)
    left = 2 * MARGIN + round(font.getlength(f"rank {ranks - 1}"))
    until = max(float(makespan(spans)) / scale.length for spans in panels.values())
    per_unit = (WIDTH - MARGIN - left) / until
    top = MARGIN
    for name, spans in panels.items():
        caption = f"{name}: {float(makespan(spans)) / scale.length:.1f} {scale.unit}"
        pen.text((left, top), f"{caption}, bubble {float(bubble_fraction(spans)):.3f}", "black", font)
        top += LINE
        for rank in range(ranks):
            pen.text((left - MARGIN, top + rank * ROW + ROW // 2), f"rank {rank}", "black", font, "rm")
        for box, colour in _bars(spans, left, top, per_unit / scale.length):
            pen.rectangle(box, colour)
        top += ranks * ROW
        pen.line((left, top, WIDTH - MARGIN, top), GREY)
    step = tick_step(until / TICKS)
    for count in range(int(until / step) + 1):
        at = left + round(count * step * per_unit)
        pen.line((at, top, at, top + 4), GREY)
        label = f"{count * step:g}"
        pen.text((min(at, WIDTH - font.getlength(label) / 2 - 1), top + 6), label, "black", font, "ma")
    pen.text((left, top + LINE), f"{scale.unit}; light: F, dark: B and I, orange: W", "black", font)
    sheet.save(path, "png")


def _bars(spans: Sequence[Span], left: int, top: int, per_ns: float) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the box and the colour of each action; the last column of a box that has several stays white."""
    begin: Any = min(span.start for span in spans)
    for span in spans:
        start, end = (left + round(float(moment - begin) * per_ns) for moment in (span.start, span.end))
        upper = top + span.rank * ROW + (ROW - BAR) // 2
        yield (start, upper, max(start, end - 2), upper + BAR - 1), COLOURS[span.op][0]
