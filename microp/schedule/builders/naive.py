"""Naive: one microbatch at a time."""

from __future__ import annotations

from microp.schedule.schedule import Action, Op, Schedule, rows


def naive(ranks: int, chunks: int) -> Schedule:
    """Return one microbatch after the other: through all ranks and back, before the next starts.

    ::

        rank 0   F0  .  .  B0  F1  .  .  B1
        rank 1    .  F0 B0  .   .  F1 B1  .

    One rank works at a time. The bubble is (K-1)/K for every M, with 1 microbatch in flight.
    """
    return Schedule(
        "naive",
        chunks,
        rows(
            (Action(op, rank, microbatch) for microbatch in range(chunks) for op in (Op.F, Op.B))
            for rank in range(ranks)
        ),
    )
