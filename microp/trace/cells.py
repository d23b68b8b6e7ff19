"""Draws one rank's actions as a row of characters, one per column of time.

::

    F0--F1--····B0====B1====    an action: its name, then the fill of its op
    F-F-F-FFF·B0=B1=B2=         too narrow for its name: its op alone
    0F1-0F2-·0B1==0B2==         a rank of several stages: the stage comes first
    ··F0--B0==·RRRRR            a sum over the replicas

Of a rank's actions of an op nearly all are named or none: those that have room for the longest name, see `named`.

A column shows what runs at its middle. An action that runs in the middle of no column is drawn where the rank is idle
there, if it is longer than SHORT columns and the row has room for all of its actions; else it is not drawn.

No number can be misread: a name stands whole inside its action's columns, and one with a stage has neither a letter
nor a digit beside it. Without a stage every action begins with its op's letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.trace.look import named, shade
from microp.trace.reductions import Reduction
from microp.trace.spans import Spans

FILL = {"F": "-", "B": "=", "I": "=", "W": "~"}
IDLE, REDUCED = "·", "R"
SHORT = 0.2  # columns

Place = Callable[[NDArray[np.generic]], NDArray[np.float64]]
"""Times -> columns, as real numbers: 0 is the left edge of the first column."""


class Cells(NamedTuple):
    """Some characters of one look."""

    text: str
    look: str = ""  # an op and its shade (`F0`, `B1`), with a `-` if they are fill; `idle`, `sum`; empty: plain text


def row(spans: Spans, rank: int, sums: Iterable[Reduction], place: Place, columns: int) -> list[Cells]:
    """Return the characters of one rank, `columns` in all; `place` tells where a time lies.

    The spans of one step and the sums are those of all ranks. A sum is drawn where the rank runs no action.
    """
    bounds = [*spans.first.tolist(), len(spans)]
    at = int(np.searchsorted(spans.rank[spans.first], rank))
    part = slice(bounds[at], bounds[at + 1])
    left, right = place(spans.start[part]), place(spans.end[part])
    # 1. every action of a column or more: its op, then fill
    first, end = (np.ceil(edge - 0.5).astype(np.int64) for edge in (left, right))
    drawn = [Cells(IDLE, "idle")] * columns
    staged, stages = has_several_stages(spans), sorted(set(spans.stage[part].tolist()))
    boxes = []
    for index in np.flatnonzero(end > first).tolist():
        op, stage, microbatch = spans.at(part.start + index)
        look = f"{op}{shade(stage, stages)}"
        fill = Cells(FILL[op], f"{look}-")
        drawn[first[index] : end[index]] = [Cells(op, look), *[fill] * int(end[index] - first[index] - 1)]
        boxes.append((int(first[index]), f"{stage if staged else ''}{op}{microbatch}", look))
    #    a shorter one: its op, where nothing else is, unless there are too many of them
    for index in np.flatnonzero((end == first) & (right - left > SHORT)).tolist() if 2 * len(left) <= columns else ():
        op, stage, _ = spans.at(part.start + index)
        if drawn[column := min(int((left[index] + right[index]) / 2), columns - 1)].text == IDLE:
            drawn[column] = Cells(op, f"{op}{shade(stage, stages)}")
    # 2. their names; an action's own length counts, because rounding makes the numbers of columns uneven
    needed = max((len(name) for _, name, _ in boxes), default=0) + staged
    lengths = np.minimum(end - first, right - left + 1e-6)[end > first]
    has_room = [
        bool(length >= needed) and not (staged and column > 0 and drawn[column - 1].text.isalpha())
        for length, (column, _, _) in zip(lengths, boxes, strict=True)
    ]
    for (column, name, look), is_named in zip(boxes, named([look[0] for *_, look in boxes], has_room), strict=True):
        if is_named:
            drawn[column : column + len(name)] = [Cells(char, look) for char in name]
    # 3. sums, where nothing else is
    for reduction in sums:
        if reduction.rank == rank:
            _put_sum(drawn, *place(np.array([reduction.start, reduction.end])).tolist())
    return drawn


def has_several_stages(spans: Spans) -> bool:
    """Return whether a rank holds several stages, so that names have the stage."""
    return bool(spans.stage.max() >= len(spans.first))


def _put_sum(drawn: list[Cells], left: float, right: float) -> None:
    first, end = (int(np.ceil(edge - 0.5)) for edge in (left, right))
    if first == end:  # shorter than a column
        first = min(int((left + right) / 2), len(drawn) - 1)
    for column in range(first, max(end, first + 1)):
        if drawn[column].text == IDLE:
            drawn[column] = Cells(REDUCED, "sum")


def merged(cells: Iterable[Cells]) -> Iterator[Cells]:
    """Yield the same characters, neighbours of one look as one."""
    for look, same in groupby(cells, key=lambda cell: cell.look):
        yield Cells("".join(cell.text for cell in same), look)
