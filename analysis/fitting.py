"""Text that fits its place: measured in the figures' font, broken into lines, shortened, or left out.

::

    wrapped     "emulated, K = 4,          shortened   "a_very_lo…_schedule"
                 microbatch fixed"         apart       1  2  4 (5) (6) (7) 8 ── those in brackets have no room

All lengths are in inches, and sizes of fonts in points.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

POINTS = 9.5  # the size of all text in figures: 11 CSS pixels on a phone, where a figure is scrolled
LINE = 1.3  # of a font's size: the height of a line of text
WORDS = re.compile(r"[^\s_/,]*[_/,]?\s*")  # a line may end after each
GAP = 0.07  # between two texts on one line


@cache
def width(text: str, points: float = POINTS) -> float:
    """Return the width of a text's longest line."""
    font = FontProperties(family="DejaVu Sans", size=points)
    return max(text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")) / 72


def shortened(text: str, inches: float) -> str:
    """Return the text, without letters in its middle if it is wider than `inches`."""
    if width(text) <= inches:
        return text
    for letters in range(len(text) - 1, 1, -1):
        short = f"{text[: letters - letters // 2]}…{text[len(text) - letters // 2 :]}"
        if width(short) <= inches:
            return short
    return "…"


def wrapped(text: str, inches: float, lines: int = 3) -> str:
    """Return the text in lines of at most `inches`, broken at spaces and inside names; longer lines are shortened."""
    if width(text) <= inches:
        return text.rstrip()
    done = [""]
    for word in WORDS.findall(text):
        if width(f"{done[-1]}{word}".rstrip()) <= inches or len(done) == lines or not done[-1]:
            done[-1] += word
        else:
            done.append(word)
    return "\n".join(shortened(line.rstrip(), inches) for line in done)


def apart(places: Sequence[float], widths: Sequence[float]) -> list[int]:
    """Return which texts, with these ascending centres and widths, to show: each that is clear of the one before it."""
    shown: list[int] = []
    for index, (place, wide) in enumerate(zip(places, widths, strict=True)):
        if not shown or place - wide / 2 >= places[shown[-1]] + widths[shown[-1]] / 2 + GAP:
            shown.append(index)
    return shown
