"""Fits a table into the width of the terminal: no heading is cut, and no row takes two lines.

::

    1. as it is      learning_rate  data.path            step ms  samples/s
    2. two lines     learning_rate  data.path               step  samples/s
                                                              ms
    3. shorter       learning_rate  data.path              values lose their middle: /data/…/a.txt
    4. fewer         learning_rate  data.path  step ms     and below: left out, no room: samples/s
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2  # blanks between two columns
CUT = "…"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: the heading; it may be broken into two lines after a blank, a dot or an underscore.
        values: one text per row.
        justify: the side on which the values are aligned.
        importance: columns of the lowest importance are left out first; of equal ones, the right one.
        shortest: a longer value may lose its middle until it has this many characters; None: never.
        style: how `rich` prints the values.
        shorter: returns the values with at most so many characters each, None if it cannot; by default `shorten`.
    """

    name: str
    values: Sequence[str]
    justify: Literal["left", "right"] = "right"
    importance: int = 0
    shortest: int | None = None
    style: str = ""
    shorter: Callable[[Sequence[str], int], list[str] | None] | None = None


class Fitted(NamedTuple):
    """A table that fits.

    Attributes:
        table: what to print.
        left_out: the names of the columns that had no room, in their order.
        shortened: whether a value lost its middle.
    """

    table: Table
    left_out: list[str]
    shortened: bool


class _Laid(NamedTuple):
    """A column as it is printed: the lines of its heading, its values, and their width."""

    column: Column
    heading: Sequence[str]
    values: Sequence[str]

    @property
    def least(self) -> int:
        """The width of the heading."""
        return max(map(cell_len, self.heading))

    @property
    def width(self) -> int:
        return max([self.least, *map(cell_len, self.values)])


def show(console: Console, columns: Sequence[Column], whole: str) -> list[str]:
    """Print a table that fits the console, and below it what was left out; return the names of the printed columns.

    Args:
        console: where to print.
        columns: all with equally many values.
        whole: where everything can be found, for example the path of a CSV file.
    """
    table, left_out, shortened = fit(columns, console.width)
    console.print(table)
    if left_out:
        paragraph(console, f"left out, no room: {', '.join(left_out)} (whole in {whole})")
    elif shortened:
        paragraph(console, f"{CUT} stands for what had no room (whole in {whole})")
    return [column.name for column in columns if column.name not in left_out]


def paragraph(console: Console, text: str, style: str = "dim") -> None:
    """Print a text that is wrapped between words, so that a path can be copied."""
    for line in text.splitlines():
        lines = textwrap.wrap(line, console.width, break_long_words=False, break_on_hyphens=False)
        console.print("\n".join(lines), style=style, soft_wrap=True, markup=False)


def fit(columns: Sequence[Column], width: int) -> Fitted:
    """Return a table of at most `width` characters per line, with as many of the columns as have room."""
    dropped = sorted(range(len(columns)), key=lambda index: (columns[index].importance, -index))
    for number in range(len(columns)):
        kept = [index for index in range(len(columns)) if index not in dropped[:number]]
        for laid in _layouts([columns[index] for index in kept], width):
            if _total(laid) <= width:
                left_out = [column.name for index, column in enumerate(columns) if index not in kept]
                return Fitted(_table(laid), left_out, any(each.values != each.column.values for each in laid))
    return Fitted(Table(), [column.name for column in columns], False)


def _layouts(columns: Sequence[Column], width: int) -> Iterator[list[_Laid]]:
    """Yield the ways to lay out columns, the best first."""
    yield [_Laid(column, [column.name], column.values) for column in columns]
    yield [_Laid(column, _heading(column.name, column.values), column.values) for column in columns]
    least = [column.values if column.shortest is None else [""] for column in columns]
    headings = [_heading(column.name, values) for column, values in zip(columns, least, strict=True)]
    yield _shortened(
        [_Laid(column, heading, column.values) for column, heading in zip(columns, headings, strict=True)], width
    )


def _total(laid: Sequence[_Laid]) -> int:
    return sum(each.width for each in laid) + GAP * (len(laid) - 1)


def _heading(heading: str, values: Sequence[str]) -> list[str]:
    """Return the heading in one line if its values are as wide, else as the narrowest one or two lines."""
    if any(cell_len(value) >= cell_len(heading) for value in values):
        return [heading]
    breaks = [match.end() for match in re.finditer(r"[ ._]", heading) if match.end() < len(heading)]
    ways = [[heading], *([heading[:at].rstrip(" "), heading[at:]] for at in breaks)]
    return min(ways, key=lambda lines: max(map(cell_len, lines)))


def _shortened(laid: Sequence[_Laid], width: int) -> list[_Laid]:
    """Return the columns with shorter values, the widest shortened first, until they fit or none can be shorter."""
    found, final = list(laid), {index for index, each in enumerate(laid) if each.column.shortest is None}
    while _total(found) > width and len(final) < len(found):
        index = max((index for index in range(len(found)) if index not in final), key=lambda index: found[index].width)
        each, limit = found[index], found[index].width - 1
        shorter = None
        if limit >= max(each.least, each.column.shortest or 0):
            shorter = (each.column.shorter or shorten)(each.column.values, limit)
        if shorter is None:
            final.add(index)
        else:
            found[index] = each._replace(values=shorter)
    return found


def shorten(values: Sequence[str], limit: int) -> list[str] | None:
    """Return the values with at most `limit` characters each; None if two different ones would become equal."""
    long = [value for value in dict.fromkeys(values) if cell_len(value) > limit]
    common = _common_start(long) if len(long) > 1 else ""
    start = max(common.rfind(mark) for mark in "/,.") if limit > 4 else -1
    for skipped in (0, max(start, 0)):
        for head in dict.fromkeys((limit // 2, limit // 4, 3 * limit // 4)):
            short = {value: _cut(value, skipped, head, limit) for value in dict.fromkeys(values)}
            if len(set(short.values())) == len(short):
                return [short[value] for value in values]
    return None


def _common_start(texts: Sequence[str]) -> str:
    """Return the characters with which all texts begin."""
    first, last = min(texts), max(texts)
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _cut(value: str, skipped: int, head: int, limit: int) -> str:
    """Return the value without its first `skipped` characters and without its middle, if it is longer than `limit`."""
    if cell_len(value) <= limit:
        return value
    if skipped:
        value = CUT + value[skipped:]
        if cell_len(value) <= limit:
            return value
    tail = limit - head - 1
    return value[:head] + CUT + value[len(value) - tail :]


def _table(laid: Sequence[_Laid]) -> Table:
    table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, GAP, 0, 0), show_edge=False)
    for each in laid:
        heading = Text("\n".join(each.heading))
        table.add_column(heading, justify=each.column.justify, vertical="bottom", no_wrap=True, min_width=each.width)
    for row in zip(*(each.values for each in laid), strict=True):
        table.add_row(*(Text(value, style=each.column.style) for each, value in zip(laid, row, strict=True)))
    return table
