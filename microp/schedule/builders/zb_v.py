"""ZB-V: zero bubble in the memory of 1F1B, with two stages per rank in the shape of a V."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import play
from microp.schedule.schedule import Action, Schedule, rows


def zb_v(ranks: int, chunks: int) -> Schedule:
    """Return ZB-V: rank r holds stages r and 2K-1-r, so that backwards begin on the rank of the first stage.

    ::

        rank 0  0F0 0F1 0F2 3F0 3B0 3W0 3F1 3B1 3W1 0B0 0W0 3F2 3B2 3W2 0B1 0W1 0B2 0W2   .
        rank 1    . 1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 1B1 2B2 1B2 1W1 2W2 1W2

    No rank waits between its first and its last action if F = B = W and M >= 2K-1, and every rank
    holds K microbatches. Fewer chunks take the same order without the microbatches that do not
    exist (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6).
    """
    most = max(chunks, 2 * ranks - 1)

    def row(rank: int) -> Iterator[Action]:
        below = ranks - rank
        phases = [
            (2 * below - 1, "F0"),
            (rank, "F1 F0"),
            (below, "F1 B1 W1"),
            (most - ranks - below + 1, "F0 B0 W0 F1 B1 W1"),
            (below - 1, "B0 W0 F1 B1 W1"),
            (rank, "B0 B1"),
            (below, "B0 W0"),
            (rank, "W1"),
            (rank, "W0"),
        ]
        return play(phases, (rank, 2 * ranks - 1 - rank), chunks)

    return Schedule("zb_v", chunks, rows(row(rank) for rank in range(ranks)))
