"""Spans: the moments of every action. Measured and simulated time are the same type.

::

    rank 0   |F0|F1|  .  |B0|B1|        a span: one action on one rank's clock
    rank 1   .  |F0|B0|F1|B1|  .

    wait_start ──── ready ─ start ═══════════ end
    the rank begins  it has the input, and the action runs
    to wait

No function of this package depends on whether its spans are measured or simulated. Times may be of any
number type (integers and Fractions stay exact); measured ones are nanoseconds of
`time.perf_counter_ns`, which is one clock for all processes of a host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Action, Op

Column = NDArray[Any]
_OPS = tuple(Op)  # a column holds an op as its index in this tuple
F, B, I, W = range(len(_OPS))  # noqa: E741 - the letters of Op
MOMENTS = ("wait_start", "ready", "start", "end")


class Span(NamedTuple):
    """One action on one rank's clock."""

    rank: int
    op: Op
    stage: int
    microbatch: int
    wait_start: Any  # when the rank began to wait for the action's input, having nothing else to do
    ready: Any  # when the rank held the action's input; not before `wait_start`
    start: Any  # when the action began
    end: Any  # when it ended

    @property
    def action(self) -> Action:
        """The action without its rank and times."""
        return Action(self.op, self.stage, self.microbatch)


class Actions:
    """Actions as columns, one entry per action: rank by rank, each rank in its order.

    ::

        rank         0  0  0  0  1  1  1  1
        op           F  F  B  B  F  B  F  B       as an index: 0 0 1 1 0 1 0 1
        stage        0  0  0  0  1  1  1  1
        microbatch   0  1  0  1  0  0  1  1
        first        0           4                where each rank begins

    An action takes 13 bytes. Columns are computed as a whole, so that millions of actions are fast.
    """

    def __init__(self, rank: Column, op: Column, stage: Column, microbatch: Column) -> None:
        self.rank, self.op, self.stage, self.microbatch = rank, op, stage, microbatch
        self.first = np.flatnonzero(np.diff(rank, prepend=-1))

    @classmethod
    def of(cls, rows: Sequence[Sequence[Action]], first_rank: int = 0) -> Actions:
        """Return the actions of consecutive ranks, starting with `first_rank`."""
        sizes = [len(row) for row in rows]

        def field(index: int) -> Iterator[Any]:
            return map(itemgetter(index), chain.from_iterable(rows))

        return cls(
            np.repeat(np.arange(first_rank, first_rank + len(rows), dtype=np.int32), sizes),
            _op_column(field(0)),
            np.fromiter(field(1), np.int32, sum(sizes)),
            np.fromiter(field(2), np.int32, sum(sizes)),
        )

    def __len__(self) -> int:
        return len(self.rank)

    def at(self, position: int) -> Action:
        """Return the action at a position."""
        return Action(_OPS[self.op[position]], int(self.stage[position]), int(self.microbatch[position]))

    def per_rank(self, values: Column, reduce: np.ufunc) -> dict[int, Any]:
        """Return rank -> `reduce` over its part of a column."""
        ranks = self.rank[self.first].tolist()
        return dict(zip(ranks, reduce.reduceat(values, self.first).tolist(), strict=True))


class Spans(Actions, Sequence[Span]):
    """The container of spans: columns that read as a sequence of `Span`, rank by rank, each in time order.

    The columns `wait_start`, `ready`, `start` and `end` hold 64-bit numbers, or objects if the
    times are Fractions or larger integers.
    """

    def __init__(self, actions: Actions, wait_start: Column, ready: Column, start: Column, end: Column) -> None:
        super().__init__(actions.rank, actions.op, actions.stage, actions.microbatch)
        self.wait_start, self.ready, self.start, self.end = wait_start, ready, start, end

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        if isinstance(index, slice):
            return list(self._read(index))
        index = range(len(self))[index]
        return next(self._read(slice(index, index + 1)))

    def __iter__(self) -> Iterator[Span]:
        for begin, end in pairwise((*self.first.tolist(), len(self))):
            yield from self._read(slice(begin, end))

    def _read(self, part: slice) -> Iterator[Span]:
        ops = map(_OPS.__getitem__, self.op[part].tolist())
        places = (column[part].tolist() for column in (self.stage, self.microbatch))
        times = (getattr(self, moment)[part].tolist() for moment in MOMENTS)
        return map(Span, self.rank[part].tolist(), ops, *places, *times)


def as_spans(spans: Iterable[Span]) -> Spans:
    """Return spans as a `Spans` container; a container is returned as it is."""
    if isinstance(spans, Spans):
        return spans
    ordered = sorted(spans, key=lambda span: (span.rank, span.start, span.end))
    rank, op, stage, microbatch, *times = zip(*ordered, strict=True) if ordered else ((),) * 8
    kind = column_type(chain(*times), bound=max(map(abs, chain(*times)), default=0))
    whole = [np.array(values, np.int32) for values in (rank, stage, microbatch)]
    actions = Actions(whole[0], _op_column(op), whole[1], whole[2])
    return Spans(actions, *(np.array(values, kind) for values in times))


def may_be_slices(spans: Iterable[Span]) -> bool:
    """Return whether microbatches may be divided into slices, which run backward from the last one to the first."""
    spans = as_spans(spans)
    back = np.flatnonzero((spans.op == B) | (spans.op == I))
    back = back[np.argsort(spans.stage[back], kind="stable")]
    same, falls = np.diff(spans.stage[back]) == 0, np.diff(spans.microbatch[back]) < 0
    return bool((same & falls).any())


def _op_column(ops: Iterable[str]) -> Column:
    # An op is one letter, so the joined letters are a column of bytes.
    letters = np.frombuffer("".join(ops).encode(), np.uint8)
    index = np.zeros(256, np.int8)
    index[[ord(op) for op in _OPS]] = range(len(_OPS))
    return index[letters]


def column_type(values: Iterable[Any], bound: Any) -> type:
    """Return the type of a column that holds these numbers exactly, none of them larger than `bound`."""
    kinds = set(map(type, values))
    if all(issubclass(kind, int) for kind in kinds):
        return np.int64 if bound < 2**62 else object
    return np.float64 if all(issubclass(kind, int | float) for kind in kinds) else object


class StepTrace:
    """One rank's timestamps of a step, which become spans on first use, after the step.

    `marks` are three per action: when it began to wait, started and ended; `read` makes nanoseconds of them.
    """

    def __init__(self, actions: Actions, marks: Sequence[Any], read: Callable[[Sequence[Any]], list[int]]) -> None:
        self.actions, self.marks, self._read = actions, marks, read

    @cached_property
    def times(self) -> list[int]:
        """The times of the marks in nanoseconds."""
        return self._read(self.marks)

    @cached_property
    def spans(self) -> Spans:
        """One span per action; times in nanoseconds."""
        times = np.array(self.times, np.int64)
        return Spans(self.actions, times[::3], times[1::3], times[1::3], times[2::3])
