"""Schedules, spans and costs as tests write them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

from microp.schedule import Action, Op, Schedule
from microp.simulator import Costs, for_stages
from microp.trace import Span


def defined(build: Callable[[int, int], Schedule], ranks: int, numbers: Iterable[int]) -> Iterator[Schedule]:
    """The schedules of a builder, which says for which numbers of microbatches it is not defined."""
    for chunks in numbers:
        with suppress(ValueError):
            yield build(ranks, chunks)


def read(*rows: str, chunks: int = 1, name: str = "drawn") -> Schedule:
    return Schedule(name, chunks, tuple(tuple(map(Action.parse, row.split())) for row in rows))


def read_spans(*rows: str) -> list[Span]:
    """Spans as drawn, a word per unit of time: `F0` an action, `.` a bubble; stage = rank.

    A rank waits for its next action from the end of the one before.
    """
    spans = []
    for rank, row in enumerate(rows):
        free = Fraction(0)
        for time, word in enumerate(row.split()):
            if word != ".":
                start, end = Fraction(time), Fraction(time + 1)
                spans.append(Span(rank, Op(word[0]), rank, int(word[1:]), free, start, start, end))
                free = end
    return spans


def equal(stages: int, forward: Any, backward: Any, latency: Any = 0) -> Costs:
    return for_stages(stages, forward=forward, backward=backward, latency=latency)
