"""Naive, one microbatch at a time, and GPipe: fill, then drain, with one or several stages per rank."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from microp.schedule.builders.phases import looped_stages
from microp.schedule.schedule import Action, Op, Schedule, rows


def naive(ranks: int, chunks: int) -> Schedule:
    """Return one microbatch after the other: through all ranks and back, before the next starts.

    ::

        rank 0   F0  .  .  B0  F1  .  .  B1
        rank 1    .  F0 B0  .   .  F1 B1  .

    One rank works at a time. The bubble is (K-1)/K for every M, with 1 microbatch in flight.
    """

    def row(rank: int) -> Iterator[Action]:
        for microbatch in range(chunks):
            yield Action(Op.F, rank, microbatch)
            yield Action(Op.B, rank, microbatch)

    return Schedule("naive", chunks, rows(row(rank) for rank in range(ranks)))


class Drain(StrEnum):
    """The order of the microbatches in GPipe's backwards."""

    fifo = "fifo"  # first in, first out: gradients add up in the same order as without a pipeline
    lifo = "lifo"  # last in, first out: the last microbatch's activations are used at once


def gpipe(ranks: int, chunks: int, drain: Drain = Drain.fifo) -> Schedule:
    """Return all forwards, then all backwards (Huang et al., GPipe, arXiv 1811.06965).

    ::

        rank 0   F0 F1 F2  .  .  B0 B1 B2
        rank 1    . F0 F1 F2 B0  B1 B2  .

    The bubble is (K-1)/(M+K-1) (section 2.3), with M microbatches in flight on every rank.

    Args:
        drain: the order of the microbatches in the backwards: fifo or lifo.
    """
    backwards = range(chunks) if drain == Drain.fifo else range(chunks - 1, -1, -1)

    def row(rank: int) -> Iterator[Action]:
        yield from (Action(Op.F, rank, microbatch) for microbatch in range(chunks))
        yield from (Action(Op.B, rank, microbatch) for microbatch in backwards)

    name = "gpipe" if drain == Drain.fifo else "gpipe_lifo"
    return Schedule(name, chunks, rows(row(rank) for rank in range(ranks)))


def breadth_first(ranks: int, chunks: int, stages_per_rank: int = 2, drain: Drain = Drain.fifo) -> Schedule:
    """Return the forwards of all microbatches, one of a rank's stages after the other, then the backwards in reverse.

    ::

        rank 0  0F0 0F1 0F2 2F0 2F1 2F2   .   . 2B0 2B1 2B2 0B0 0B1 0B2
        rank 1    . 1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2   .

    The bubble is that of interleaved 1F1B, with M microbatches in flight. The order suits sharded
    data parallelism, because a stage's weights are gathered only once (Lamy-Poirier, Breadth-First
    Pipeline Parallelism, arXiv 2211.05953, section 4). Rank r holds stages r, K+r, 2K+r, ...

    Args:
        stages_per_rank: the number of stages that a rank holds.
        drain: the order of the microbatches in a stage's backwards: fifo or lifo. torch's LoopedBFS uses lifo.

    Raises:
        ValueError: `stages_per_rank` is below 1.
    """
    backwards = range(chunks) if drain == Drain.fifo else range(chunks - 1, -1, -1)

    def row(rank: int) -> Iterator[Action]:
        stages = looped_stages(rank, ranks, stages_per_rank)
        for stage in stages:
            yield from (Action(Op.F, stage, microbatch) for microbatch in range(chunks))
        for stage in reversed(stages):
            yield from (Action(Op.B, stage, microbatch) for microbatch in backwards)

    name = "breadth_first" if drain == Drain.fifo else "breadth_first_lifo"
    return Schedule(name, chunks, rows(row(rank) for rank in range(ranks)))
