"""Prints on the terminal: the two consoles, timelines in colours, notes, warnings and errors."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.text import Text

from microp.schedule import Op
from microp.trace import COLOURS, INK, REDUCTION, WHITE, Line

CAUTION = "dark_orange3"  # can be read on a dark and on a light background; yellow cannot on white
PIPE_WIDTH = 120  # characters per line where there is neither a terminal nor COLUMNS in the environment


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # to `run_command`; rich would end the program with 1


out = _Console(
    highlight=False, width=None if sys.stdout.isatty() or os.environ.get("COLUMNS", "0") != "0" else PIPE_WIDTH
)
err = _Console(stderr=True, highlight=False)


def draw(lines: Iterable[Line]) -> None:
    """Print a timeline, in the colours of figures if there are any; they say nothing that the characters do not say."""
    for line in lines:
        text = Text()
        for cells in line:
            text.append(cells.text, _style(cells.look))
        text.rstrip()
        out.print(text, soft_wrap=True)


def _style(look: str) -> str:
    """Return the style of cells: of names the op's ink, of fill the colour of its other shade."""
    if look[:1] in COLOURS:
        op, place = Op(look[0]), int(look[1])
        ink = COLOURS[op][1 - place] if look.endswith("-") else INK[op]
        return f"{ink} on {COLOURS[op][place]}"
    return {"idle": "dim", "sum": f"{WHITE} on {REDUCTION}"}.get(look, "")


def _lines(text: str) -> str:
    """Return text wrapped between words if a person reads it; whole in a pipe, where a program may look for it."""
    if not (err.is_terminal or os.environ.get("COLUMNS")):
        return text
    return textwrap.fill(text, err.width, break_long_words=False, break_on_hyphens=False)


def status(text: str) -> AbstractContextManager[object]:
    """Return a context in which a spinner says what is awaited; without a terminal the text is printed once."""
    if err.is_terminal:
        return err.status(text)
    note(text)
    return nullcontext()


def note(text: str) -> None:
    """Print a note on standard error."""
    err.print(_lines(text), style="dim", soft_wrap=True, markup=False)


def line(text: str) -> None:
    """Print a note that is to be copied, such as a command, on one line however long it is."""
    err.print(text, style="dim", soft_wrap=True, markup=False)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    err.print(_lines(f"warning: {text}"), style=CAUTION, soft_wrap=True, markup=False)


def error(text: str) -> None:
    """Print an error on standard error."""
    err.print(f"error: {text}", style="red", soft_wrap=True, markup=False)
