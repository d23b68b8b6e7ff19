"""Stop and wait."""

from __future__ import annotations

from microp.schedule import Action, Op, Schedule, rows


def naive(ranks: int, chunks: int) -> Schedule:
    """One microbatch after the other: through all ranks and back, before the next starts.

    ::

        rank 0   F0  .  .  B0  F1  .  .  B1
        rank 1    .  F0 B0  .   .  F1 B1  .

    One rank works at a time. Bubble (K-1)/K whatever M is; 1 microbatch in flight.
    """
    return Schedule(
        "naive",
        chunks,
        rows(
            (Action(op, rank, microbatch) for microbatch in range(chunks) for op in (Op.F, Op.B))
            for rank in range(ranks)
        ),
    )
