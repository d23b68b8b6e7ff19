"""Prints tables and paragraphs that fit the width of the terminal.

::

    1. whole      learning_rate  data.path                    step ms  samples/s
    2. shorter    learning_rate  /home/so…  step  samples/s   headings in lines, then long values of keys
                                              ms
    3. fewer      learning_rate  step       and below: left out, no room: data.path, samples/s
                                   ms
    step ms: ...  Every column: analysis/README.md            the footer, of the columns that are shown
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from microp.terminal.console import out

GAP = 2  # blanks between two columns
CUT = "…"
WORD = 12  # characters of a key's part up to which a heading is not broken inside
PAGE = "Every column: analysis/README.md."
_MOST_DIGITS = 6  # after the point


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str  # the heading; it may take several lines
    values: Sequence[str]  # one text per row
    justify: Literal["left", "right"] = "right"  # the side on which the values are aligned
    importance: int = 0  # columns of the lowest importance are left out first; of equal ones, the right one
    shortest: int | None = None  # the characters to which a longer value may be cut; None: never
    style: str = ""  # how `rich` prints the values
    about: str = ""  # a sentence for the footer that says what it means; empty if its name does
    is_key: bool = False  # whether it tells rows apart: it stays where two rows would look alike without it

    @property
    def width(self) -> int:
        """The characters of the longest text."""
        return max(map(cell_len, (self.name, *self.values)))

    @property
    def least(self) -> int:
        """The fewest characters: with the heading in lines, and values that may be cut as short as may be."""
        values: int = max(map(cell_len, self.values), default=0)
        name = self.name
        if self.shortest is not None:
            values, name = min(values, self.shortest), name.replace(".", ". ")
        most = WORD if self.shortest is not None else len(name)
        return max([values, *(min(len(word), most) for word in name.split())])  # a column may have no heading


def show(columns: Sequence[Column], whole: str, parts: Mapping[int, str] | None = None) -> None:
    """Print a table that fits the terminal; below it what was left out, and what the columns that are shown mean.

    `whole` says where everything can be found, for example the path of a CSV file. `parts` has the headings of the
    table's parts, each by the number of its first row.
    """

    def room(widths: Sequence[int]) -> int:
        return out.width - sum(widths) - GAP * (len(widths) - 1)

    kept = list(columns)
    while len(kept) > 1 and room([column.least for column in kept]) < 0:
        alike = [column for column in kept if column.is_key and _rows(kept, column) < _rows(kept)]
        kept.remove(min(reversed(kept), key=lambda column: (column in alike, column.importance)))
    narrow = room([column.width for column in kept]) < 0
    table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, GAP, 0, 0), show_edge=False)
    names = [column.name.replace(".", ".\n") if narrow and column.shortest else column.name for column in kept]
    widths = _narrow(kept, names, room) if narrow else [column.width for column in kept]
    for column, name, width in zip(kept, names, widths, strict=True):
        table.add_column(Text(name), justify=column.justify, vertical="bottom", width=width, overflow="fold")
    for row in zip(*(column.values for column in kept), strict=True):
        cells = zip(kept, row, strict=True)
        table.add_row(*(Text(value, column.style, no_wrap=True, overflow="ellipsis") for column, value in cells))
    with out.capture() as captured:
        out.print(table)
    lines = captured.get().splitlines(keepends=True)
    for number, line in enumerate(lines, start=len(columns[0].values) - len(lines)):  # of the headings it is below 0
        if heading := (parts or {}).get(number):
            paragraph(heading, "bold")
        out.file.write(line)
    if left_out := [column.name for column in columns if column not in kept]:
        paragraph(f"left out, no room: {', '.join(left_out)} (whole in {whole})")
    elif narrow and CUT in captured.get():
        paragraph(f"{CUT} stands for what had no room (whole in {whole})")
    if sentences := dict.fromkeys(column.about for column in kept if column.about):
        paragraph(" ".join([*sentences, PAGE]))


def _narrow(columns: Sequence[Column], names: Sequence[str], room: Callable[[Sequence[int]], int]) -> list[int]:
    """Return the widths of columns whose values are cut; what is left goes to words of headings, then to values."""
    widths, values = [each.least for each in columns], [max(map(cell_len, each.values)) for each in columns]
    words = [max(map(cell_len, name.split()), default=0) for name in names]
    for at in sorted(range(len(columns)), key=lambda at: words[at] - widths[at]):
        if words[at] - widths[at] <= room(widths):
            widths[at] = max(widths[at], words[at])
    while room(widths) > 0 and (lacking := [at for at, width in enumerate(widths) if width < values[at]]):
        for at in lacking[: room(widths)]:
            widths[at] += 1
    return widths


def _rows(columns: Sequence[Column], without: Column | None = None) -> int:
    """Return how many rows differ in the keys among the columns."""
    return len(set(zip(*(column.values for column in columns if column.is_key and column is not without), strict=True)))


def paragraph(text: str, style: str = "dim") -> None:
    """Print a text that is wrapped between words, so that a path can be copied."""
    lines = textwrap.fill(text, out.width, break_long_words=False, break_on_hyphens=False)
    out.print(lines, style=style, soft_wrap=True, markup=False)


def counted(size: int, what: str) -> str:
    """Return a number with its noun, as `1 run` and `2 launches`."""
    return f"{size:,} {what}{'' if size == 1 else 'es' if what.endswith('ch') else 's'}"


def number(value: float, form: str) -> str:
    """Return a number in a form such as `.1f`, with more digits if it is so small that fewer than two would be left."""
    fixed = re.fullmatch(r",?\.(\d+)f", form)
    if fixed is None or value == 0 or not math.isfinite(value):
        return format(value, form)
    digits = max(int(fixed[1]), 1 - math.floor(math.log10(abs(value))))
    return format(value, ".2g") if digits > _MOST_DIGITS else format(value, form.replace(fixed[1], str(digits)))


def extremes(values: Iterable[float] | None, form: str) -> str:
    """Return the smallest and the largest value, one number if they look the same, `-` if there is none."""
    if not (known := list(values or ())):
        return "-"
    low, high = number(min(known), form), number(max(known), form)
    return low if low == high else f"{low} - {high}"
