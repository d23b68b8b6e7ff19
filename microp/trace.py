"""Spans, and what is read off them. Measured and simulated time are the same type.

::

    rank 0   |F0|F1|  .  |B0|B1|        busy: inside a span
    rank 1   .  |F0|B0|F1|B1|  .        bubble: the rest, 1 - busy / (ranks x makespan)

No function here knows whether its spans were measured or simulated. Times may be of any
number type (integers and Fractions stay exact); measured ones are nanoseconds of
`time.perf_counter_ns`, which is one clock for all processes of a host.

Three bubbles go by that name in the literature:

| function | over | with equal stages and no hops, GPipe and 1F1B | source |
|---|---|---|---|
| `bubble_fraction` | the makespan | (K-1) / (M+K-1) | GPipe, arXiv 1811.06965, section 2.3 |
| `megatron_bubble` | the busy time | (K-1) / M | Narayanan et al., arXiv 2104.04473, section 2.2.1 |
| `zero_bubble_rate` | the longest span of a rank | (K-1) / (M+K-1) | Qi et al., arXiv 2401.10241, table 5 |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Action, Op

Column = NDArray[Any]
_OPS = tuple(Op)  # a column holds an op as its index here
F, B, W = range(len(_OPS))


class Span(NamedTuple):
    """One action on one rank's clock.

    `ready` is when its inputs were there: simulated, when the last of them arrived;
    measured, when the rank held them, which is the end of its wait for them.
    """

    rank: int
    op: Op
    stage: int
    microbatch: int
    start: Any
    end: Any
    ready: Any

    @property
    def action(self) -> Action:
        return Action(self.op, self.stage, self.microbatch)


class Actions:
    """Actions as columns, an entry an action: rank by rank, each rank in its order.

    ::

        rank         0  0  0  0  1  1  1  1
        op           F  F  B  B  F  B  F  B       as an index: 0 0 1 1 0 1 0 1
        stage        0  0  0  0  1  1  1  1
        microbatch   0  1  0  1  0  0  1  1
        first        0           4                where each rank begins

    An action costs 13 bytes, and millions are worked on a column at a time.
    """

    def __init__(self, rank: Column, op: Column, stage: Column, microbatch: Column) -> None:
        self.rank, self.op, self.stage, self.microbatch = rank, op, stage, microbatch
        self.first = np.flatnonzero(np.diff(rank, prepend=-1))

    @classmethod
    def of(cls, rows: Sequence[Sequence[Action]]) -> Actions:
        """The actions of a schedule's ranks."""
        sizes = [len(row) for row in rows]

        def field(index: int) -> Iterator[Any]:
            return map(itemgetter(index), chain.from_iterable(rows))

        return cls(
            np.repeat(np.arange(len(rows), dtype=np.int32), sizes),
            _op_column(field(0)),
            np.fromiter(field(1), np.int32, sum(sizes)),
            np.fromiter(field(2), np.int32, sum(sizes)),
        )

    def __len__(self) -> int:
        return len(self.rank)

    def at(self, position: int) -> Action:
        """One of them."""
        return Action(_OPS[self.op[position]], int(self.stage[position]), int(self.microbatch[position]))

    def per_rank(self, values: Column, reduce: np.ufunc) -> dict[int, Any]:
        """rank -> `reduce` over its part of a column."""
        ranks = self.rank[self.first].tolist()
        return dict(zip(ranks, reduce.reduceat(values, self.first).tolist(), strict=True))

    def running(self, changes: Column) -> Column:
        """The sum of a rank's changes so far, with every action's own."""
        total: Column = np.cumsum(changes)
        before = total[self.first] - changes[self.first]
        total -= np.repeat(before, np.diff(self.first, append=len(self)))
        return total

    def is_split(self) -> Column:
        """For each action whether its (stage, microbatch) has a W, so that its B is the input gradient alone."""
        split = np.zeros((self.stage.max(initial=0) + 1, self.microbatch.max(initial=0) + 1), dtype=bool)
        put_off = self.op == W
        split[self.stage[put_off], self.microbatch[put_off]] = True
        found: Column = split[self.stage, self.microbatch]
        return found


class Spans(Actions, Sequence[Span]):
    """Spans as columns. A sequence of `Span`: rank by rank, each rank in time order.

    Three more columns, `start`, `end` and `ready`, hold 64-bit numbers, or objects if the
    times are Fractions or integers beyond that.
    """

    def __init__(self, actions: Actions, start: Column, end: Column, ready: Column) -> None:
        super().__init__(actions.rank, actions.op, actions.stage, actions.microbatch)
        self.start, self.end, self.ready = start, end, ready

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
        times = (column[part].tolist() for column in (self.start, self.end, self.ready))
        return map(Span, self.rank[part].tolist(), ops, *places, *times)


def columns(spans: Iterable[Span]) -> Spans:
    """Any spans as columns; those that already are, as they are."""
    if isinstance(spans, Spans):
        return spans
    ordered = sorted(spans, key=lambda span: (span.rank, span.start, span.end))
    rank, op, stage, microbatch, *times = zip(*ordered, strict=True) if ordered else ((),) * 7
    kind = column_type(chain(*times), bound=max(map(abs, chain(*times)), default=0))
    whole = [np.array(values, np.int32) for values in (rank, stage, microbatch)]
    actions = Actions(whole[0], _op_column(op), whole[1], whole[2])
    return Spans(actions, *(np.array(values, kind) for values in times))


def _op_column(ops: Iterable[str]) -> Column:
    # An op is a letter, so that the text of all of them is a column of bytes.
    letters = np.frombuffer("".join(ops).encode(), np.uint8)
    index = np.zeros(256, np.int8)
    index[[ord(op) for op in _OPS]] = range(len(_OPS))
    return index[letters]


def column_type(values: Iterable[Any], bound: Any) -> type:
    """What a column needs so that its numbers, the largest of which is `bound`, stay what they are."""
    kinds = set(map(type, values))
    if all(issubclass(kind, int) for kind in kinds):
        return np.int64 if bound < 2**62 else object
    return np.float64 if all(issubclass(kind, int | float) for kind in kinds) else object


def makespan(spans: Iterable[Span]) -> Any:
    """From the first start to the last end, over all ranks."""
    spans = columns(spans)
    return max(spans.per_rank(spans.end, np.maximum).values()) - min(spans.per_rank(spans.start, np.minimum).values())


def busy(spans: Iterable[Span]) -> dict[int, Any]:
    """rank -> the sum of its spans' lengths (spans of a rank do not overlap)."""
    spans = columns(spans)
    return spans.per_rank(spans.end - spans.start, np.add)


def bubble_fraction(spans: Iterable[Span]) -> Any:
    """1 - busy / (ranks x makespan): GPipe's definition, idle over total."""
    per_rank = busy(spans := columns(spans))
    return 1 - sum(per_rank.values()) / (len(per_rank) * makespan(spans))


def megatron_bubble(spans: Iterable[Span]) -> Any:
    """ranks x makespan / busy - 1: Megatron's definition, idle over ideal."""
    per_rank = busy(spans := columns(spans))
    return (len(per_rank) * makespan(spans)) / sum(per_rank.values()) - 1


def zero_bubble_rate(spans: Iterable[Span]) -> Any:
    """1 - busy / (ranks x cost): Zero Bubble's definition.

    The cost is the longest time from a rank's own first start to its last end, since the
    next step may begin on one rank while this one ends on another.

    ::

        rank 0   F0 F1 F2 B0 W0 B1 W1 B2 W2              a step that is a parallelogram has no
        rank 1      F0 B0 F1 B1 F2 B2 W0 W1 W2           bubble: the next fits right behind it
    """
    per_rank = busy(spans := columns(spans))
    first, last = spans.per_rank(spans.start, np.minimum), spans.per_rank(spans.end, np.maximum)
    return 1 - sum(per_rank.values()) / (len(per_rank) * max(last[rank] - first[rank] for rank in per_rank))


def in_flight_peak(spans: Iterable[Span]) -> dict[int, int]:
    """rank -> the most (stage, microbatch) pairs forwarded and not yet backwarded at once."""
    spans = columns(spans)
    return spans.per_rank(spans.running(np.array([1, -1, 0])[spans.op]), np.maximum)


def idle_edges(spans: Iterable[Span]) -> dict[int, tuple[Any, Any]]:
    """rank -> (idle before its first span, idle after its last) within the makespan."""
    spans = columns(spans)
    first, last = spans.per_rank(spans.start, np.minimum), spans.per_rank(spans.end, np.maximum)
    begin, end = min(first.values()), max(last.values())
    return {rank: (first[rank] - begin, end - last[rank]) for rank in first}


def median_times(spans: Iterable[Span]) -> dict[tuple[int, Op], Any]:
    """(stage, op) -> the median length of its spans."""
    lengths: dict[tuple[int, Op], list[Any]] = defaultdict(list)
    for span in spans:
        lengths[span.stage, span.op].append(span.end - span.start)
    return {key: median(values) for key, values in lengths.items()}


class StepTrace:
    """What one rank's clock saw of a step; worked out when it is asked for, after the step.

    Attributes:
        spans: one an action, in the order in which they ran; times in nanoseconds.
        asked: for each of them when the rank began to wait for its input.
    """

    def __init__(self, rank: int, row: Sequence[Action], times: Callable[[], list[int]]) -> None:
        self._rank, self._row, self._read = rank, row, times

    @cached_property
    def _times(self) -> list[int]:
        return self._read()

    @cached_property
    def asked(self) -> list[int]:
        return self._times[::3]

    @cached_property
    def spans(self) -> list[Span]:
        moments = zip(self._row, self._times[1::3], self._times[2::3], strict=True)
        return [Span(self._rank, *action, start, end, start) for action, start, end in moments]
