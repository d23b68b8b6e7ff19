"""Fits timelines to a terminal: its width and its colours.

::

    a terminal     its width             colours, unless NO_COLOR is set or TERM is dumb
    a pipe, file   120 columns           no colours, unless FORCE_COLOR is set
    COLUMNS=80     80 columns in both

The colours are those of the figures. They have a ground of their own, so they look alike on light and dark
terminals, and they say nothing that the characters do not say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, NamedTuple

from microp.schedule import Op
from microp.trace.cells import Cells
from microp.trace.palette import COLOURS, INK, REDUCTION
from microp.trace.timeline import Line, plain

IN_A_PIPE = 120  # columns, as of the tables
LEVELS = (0, 95, 135, 175, 215, 255)  # of red, green and blue in the terminal's 216 colours, which no theme changes


class Screen(NamedTuple):
    """What a stream shows.

    Attributes:
        colours: how many colours it shows: 0, 256, or 2**24 if COLORTERM says so.
    """

    columns: int
    colours: int

    def text(self, lines: Iterable[Line]) -> str:
        """Return the lines of a timeline as text, with escape sequences if the stream shows colours."""
        if not self.colours:
            return plain(lines)
        return "\n".join("".join(self._painted(cells) for cells in line) for line in lines)

    def _painted(self, cells: Cells) -> str:
        """Return cells with escape sequences: names in the op's ink, fill in the colour of its other shade."""
        text, look = cells
        if look == "idle":
            return f"\x1b[2m{text}\x1b[0m"
        if look == "sum":
            return self._on(REDUCTION, "white", text)
        if look[:1] not in COLOURS:
            return text
        op, place = Op(look[0]), int(look[1])
        return self._on(COLOURS[op][place], COLOURS[op][1 - place] if look.endswith("-") else INK[op], text)

    def _on(self, ground: str, ink: str, text: str) -> str:
        number = _nearest if self.colours == 256 else _exact
        return f"\x1b[38;{number(ink)};48;{number(ground)}m{text}\x1b[0m"


def screen(stream: IO[str] | None = None) -> Screen:
    """Return what a stream shows; standard output if none is given."""
    stream = stream or sys.stdout
    return Screen(_width(stream), _colours(stream))


def _width(stream: IO[str]) -> int:
    """Return the columns of a stream."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    try:
        return os.get_terminal_size(stream.fileno()).columns or IN_A_PIPE
    except (OSError, ValueError):  # not a terminal; not even a file
        return IN_A_PIPE


def _colours(stream: IO[str]) -> int:
    """Return how many colours a stream gets, by the rules that rich has."""
    environ = os.environ
    if environ.get("NO_COLOR") or environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return 0
    forced = environ.get("FORCE_COLOR")
    if not (stream.isatty() if forced is None else forced):
        return 0
    return 2**24 if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") else 256


def _rgb(colour: str) -> tuple[int, int, int]:
    digits = {"black": "#000000", "white": "#ffffff"}.get(colour, colour)
    return int(digits[1:3], 16), int(digits[3:5], 16), int(digits[5:7], 16)


def _exact(colour: str) -> str:
    return "2;" + ";".join(map(str, _rgb(colour)))


def _nearest(colour: str) -> str:
    """Return the nearest of the 216 colours that no theme changes."""
    red, green, blue = (min(range(6), key=lambda level: abs(LEVELS[level] - value)) for value in _rgb(colour))
    return f"5;{16 + 36 * red + 6 * green + blue}"
