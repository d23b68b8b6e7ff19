"""Fits timelines to a terminal: its width and its colours.

::

    a terminal     its width             colours, unless NO_COLOR is set or TERM is dumb
    a pipe, file   120 columns           no colours, unless FORCE_COLOR is set
    COLUMNS=80     80 columns in both

The colours are the nearest to those of the figures of the 216 that no theme changes. They have a ground of their own,
so they look alike on light and dark terminals, and they say nothing that the characters do not say.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import IO, NamedTuple

from microp.schedule import Op
from microp.trace.cells import Cells
from microp.trace.look import COLOURS, INK, REDUCTION
from microp.trace.timeline import Line, plain

IN_A_PIPE = 120  # columns, as of the tables
LEVELS = (0, 95, 135, 175, 215, 255)  # of red, green and blue in the 216 colours


class Screen(NamedTuple):
    """The width of a stream, and whether it shows colours."""

    columns: int
    has_colours: bool

    def text(self, lines: Iterable[Line]) -> str:
        """Return the lines of a timeline as text, with escape sequences if the stream shows colours."""
        if not self.has_colours:
            return plain(lines)
        return "\n".join("".join(map(_painted, line)) for line in lines)


def screen(stream: IO[str] | None = None) -> Screen:
    """Return what a stream shows, by the rules that rich has; standard output if none is given."""
    environ, forced = os.environ, os.environ.get("FORCE_COLOR")
    has_colours = (stream or sys.stdout).isatty() if forced is None else bool(forced)
    if environ.get("NO_COLOR") or environ.get("TERM", "").lower() in ("dumb", "unknown"):
        has_colours = False
    return Screen(shutil.get_terminal_size((IN_A_PIPE, 0)).columns, has_colours)


def _painted(cells: Cells) -> str:
    """Return cells with escape sequences: names in the op's ink, fill in the colour of its other shade."""
    text, look = cells
    if look == "idle":
        return f"\x1b[2m{text}\x1b[0m"
    if look == "sum":
        ink, ground = "white", REDUCTION
    elif look[:1] in COLOURS:
        op, place = Op(look[0]), int(look[1])
        ink, ground = COLOURS[op][1 - place] if look.endswith("-") else INK[op], COLOURS[op][place]
    else:
        return text
    return f"\x1b[38;5;{_number(ink)};48;5;{_number(ground)}m{text}\x1b[0m"


def _number(colour: str) -> int:
    """Return the number of the nearest of the 216 colours."""
    digits = {"black": "#000000", "white": "#ffffff"}.get(colour, colour)
    values = (int(digits[place : place + 2], 16) for place in (1, 3, 5))
    red, green, blue = (min(range(6), key=lambda level: abs(LEVELS[level] - value)) for value in values)
    return 16 + 36 * red + 6 * green + blue
