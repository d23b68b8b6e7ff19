"""Fill, then drain, through several stages a rank."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule import Action, Op, Schedule, rows
from microp.schedules.gpipe import Drain
from microp.schedules.phases import looped_stages


def breadth_first(ranks: int, chunks: int, stages_per_rank: int = 2, drain: Drain = Drain.fifo) -> Schedule:
    """All microbatches through a rank's first stage, then through its next; back the same way.

    ::

        rank 0  0F0 0F1 0F2 2F0 2F1 2F2   .   . 2B0 2B1 2B2 0B0 0B1 0B2
        rank 1    . 1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2   .

    The bubble of interleaved 1F1B, with M microbatches in flight; made for sharded data
    parallelism, where a stage's weights are gathered once (Lamy-Poirier, Breadth-First Pipeline
    Parallelism, arXiv 2211.05953, section 4). Rank r holds stages r, K+r, 2K+r, ...

    Args:
        drain: in which order a stage's backwards take the microbatches; torch's LoopedBFS has lifo.

    Raises:
        ValueError: `stages_per_rank` is below 1.
    """
    backwards = range(chunks) if drain is Drain.fifo else range(chunks - 1, -1, -1)

    def row(rank: int) -> Iterator[Action]:
        stages = looped_stages(rank, ranks, stages_per_rank)
        for stage in stages:
            yield from (Action(Op.F, stage, microbatch) for microbatch in range(chunks))
        for stage in reversed(stages):
            yield from (Action(Op.B, stage, microbatch) for microbatch in backwards)

    name = "breadth_first" if drain is Drain.fifo else "breadth_first_lifo"
    return Schedule(name, chunks, rows(row(rank) for rank in range(ranks)))
