"""Draws one rank's actions as a row of characters, one per column of time.

::

    F0--F1--····B0====B1====    an action: its name, then the fill of its op
    F-F-F-FFF·B=B=B=            too narrow for its name: its op alone
    0F1-0F2--1F1-·1B2==         a rank of several stages: the stage comes first
    fffff::bbbbb                too narrow for a column of their own: see below
    ··F0--B0==·RRRRR            a sum over the replicas

A column shows what runs at its middle. An action that runs in the middle of no column would be
lost, so the column where it lies shows, in lower case, which op takes most of that column; or `:`
if it has several such actions and is idle for more than half of its time.

No number can be misread: a name stands whole inside its action's columns, and one with a stage has
neither a letter nor a digit beside it. Without a stage every action begins with its op's letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Op
from microp.trace.palette import shade
from microp.trace.reductions import Reduction
from microp.trace.spans import Spans

FILL = {"F": "-", "B": "=", "W": "~"}
IDLE, REDUCED, SPARSE = "·", "R", ":"

Place = Callable[[NDArray[np.generic]], NDArray[np.float64]]
"""Times -> columns, as real numbers: 0 is the left edge of the first column."""


class Cells(NamedTuple):
    """Some characters of one look.

    Attributes:
        text: the characters.
        look: what they show: an op and its shade (`F0`, `B1`), with a `-` if they are fill; `idle`,
            `sum`, or empty for plain text.
    """

    text: str
    look: str = ""


class _Box(NamedTuple):
    """An action that has columns of its own: from `first` up to, and without, `end`."""

    first: int
    end: int
    name: str
    op: str
    look: str


def row(spans: Spans, rank: int, sums: Iterable[Reduction], place: Place, columns: int) -> list[Cells]:
    """Return the characters of one rank, `columns` in all.

    Args:
        spans: the spans of one step, of all ranks.
        sums: the reductions over the replicas, of all ranks; drawn where the rank runs no action.
        place: where a time lies.
    """
    bounds = [*spans.first.tolist(), len(spans)]
    at = int(np.searchsorted(spans.rank[spans.first], rank))
    own = slice(bounds[at], bounds[at + 1])
    left, right = place(spans.start[own]), place(spans.end[own])
    crowded, first, end = _columns(left, right, columns)
    drawn = [Cells(IDLE, "idle")] * columns
    for column, narrow in crowded.items():
        drawn[column] = _crowded(column, narrow, left, right, spans.op[own])
    boxes = list(_boxes(spans, own, first, end))
    for box in boxes:
        fill = Cells(FILL[box.op], f"{box.look}-")
        drawn[box.first : box.end] = [Cells(box.op, box.look), *[fill] * (box.end - box.first - 1)]
    for box in boxes:
        if _can_be_read(drawn, box):
            drawn[box.first : box.first + len(box.name)] = [Cells(char, box.look) for char in box.name]
    for reduction in sums:
        if reduction.rank == rank:
            _put_sum(drawn, *place(np.array([reduction.start, reduction.end])).tolist())
    return drawn


def has_several_stages(spans: Spans) -> bool:
    """Return whether a rank holds several stages, so that names have the stage."""
    return bool(spans.stage.max() >= len(spans.first))


def _columns(
    left: NDArray[np.float64], right: NDArray[np.float64], columns: int
) -> tuple[dict[int, int], NDArray[np.int64], NDArray[np.int64]]:
    """Return column -> how many actions without a column lie there; and the actions' first columns and ends."""
    first, end = (np.ceil(edge - 0.5).astype(np.int64) for edge in (left, right))
    lost = (first == end) & (right > left)
    at, count = np.unique(np.minimum((left + right)[lost] / 2, columns - 1).astype(np.int64), return_counts=True)
    # such a column is at most the first or the last one of another action, which gives it up
    first = first + (np.isin(first, at) & (end > first))
    end = end - (np.isin(end - 1, at) & (end > first))
    return dict(zip(at.tolist(), count.tolist(), strict=True)), first, end


def _boxes(spans: Spans, own: slice, first: NDArray[np.int64], end: NDArray[np.int64]) -> Iterator[_Box]:
    """Yield the boxes of a rank in the order of time."""
    staged, stages = has_several_stages(spans), sorted(set(spans.stage[own].tolist()))
    for index in np.flatnonzero(end > first).tolist():
        op, stage, microbatch = spans.at(own.start + index)
        look = f"{op}{shade(stage, stages)}"
        yield _Box(int(first[index]), int(end[index]), f"{stage if staged else ''}{op}{microbatch}", op, look)


def _can_be_read(drawn: list[Cells], box: _Box) -> bool:
    """Return whether a box has room for its name, and nothing beside it changes how that is read.

    An action of one column before a name with a stage becomes fill, if this stands apart there.

    ::

        BF1F0- ─► B-1F0-      F1 would be wrong
        FF1F0- ─► FFF--       F1 would be wrong, and F- would be one action
    """
    first, end, name, op, _ = box
    if len(name) > end - first or name[0] == op:
        return len(name) <= end - first
    earlier, before, after = (drawn[at].text if 0 <= at < len(drawn) else IDLE for at in (first - 2, first - 1, end))
    if before.islower() or (after.isalpha() and len(name) == end - first):
        return False  # f1F0, 0F11F0
    if before in FILL:
        if earlier in (before, FILL[before]):
            return False
        drawn[first - 1] = Cells(FILL[before], f"{drawn[first - 1].look}-")
    return True


def _crowded(
    column: int, narrow: int, left: NDArray[np.float64], right: NDArray[np.float64], ops: NDArray[np.int8]
) -> Cells:
    """Return the character of a column in which `narrow` actions lie that have no column of their own."""
    inside = slice(np.searchsorted(right, column, "right"), np.searchsorted(left, column + 1))
    time = np.minimum(right[inside], column + 1) - np.maximum(left[inside], column)
    share = np.bincount(ops[inside], time, minlength=len(Op))
    if narrow > 1 and share.sum() < 0.5:
        return Cells(SPARSE, "idle")
    op = tuple(Op)[share.argmax()]
    return Cells(op.lower(), f"{op}0")


def _put_sum(drawn: list[Cells], left: float, right: float) -> None:
    first, end = (int(np.ceil(edge - 0.5)) for edge in (left, right))
    if first == end:  # shorter than a column
        first = min(int((left + right) / 2), len(drawn) - 1)
    for column in range(first, max(end, first + 1)):
        if drawn[column].text == IDLE:
            drawn[column] = Cells(REDUCED, "sum")


def merged(cells: Iterable[Cells]) -> Iterator[Cells]:
    """Yield the same characters, neighbours of one look as one."""
    for look, same in groupby(cells, key=lambda each: each.look):
        yield Cells("".join(each.text for each in same), look)
