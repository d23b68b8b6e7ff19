"""GPipe: fill, then drain."""

from __future__ import annotations

from enum import StrEnum

from microp.schedule.schedule import Action, Op, Schedule, rows


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
    order = range(chunks) if drain == Drain.fifo else range(chunks - 1, -1, -1)
    return Schedule(
        "gpipe" if drain == Drain.fifo else "gpipe_lifo",
        chunks,
        rows(
            (
                *(Action(Op.F, rank, microbatch) for microbatch in range(chunks)),
                *(Action(Op.B, rank, microbatch) for microbatch in order),
            )
            for rank in range(ranks)
        ),
    )
