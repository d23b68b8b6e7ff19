"""Zero bubble, in the memory of 1F1B, on two stages a rank laid as a V."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule import Action, Schedule, rows
from microp.schedules.phases import play


def zb_v(ranks: int, chunks: int) -> Schedule:
    """Rank r holds stages r and 2K-1-r: the last stage is where the first is, so no backward waits for the way back.

    ::

        rank 0  0F0 0F1 0F2 3F0 3B0 3W0 3F1 3B1 3W1 0B0 0W0 3F2 3B2 3W2 0B1 0W1 0B2 0W2   .
        rank 1    . 1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 1B1 2B2 1B2 1W1 2W2 1W2

    From its first action to its last no rank waits, at F = B = W and M >= 2K-1; held are K
    microbatches on every rank. Fewer chunks take the same order, with those that do not exist
    left out (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6).
    """
    laid = max(chunks, 2 * ranks - 1)

    def row(rank: int) -> Iterator[Action]:
        below = ranks - rank
        phases = [
            (2 * below - 1, "F0"),
            (rank, "F1 F0"),
            (below, "F1 B1 W1"),
            (laid - ranks - below + 1, "F0 B0 W0 F1 B1 W1"),
            (below - 1, "B0 W0 F1 B1 W1"),
            (rank, "B0 B1"),
            (below, "B0 W0"),
            (rank, "W1"),
            (rank, "W0"),
        ]
        return play(phases, (rank, 2 * ranks - 1 - rank), chunks)

    return Schedule("zb_v", chunks, rows(row(rank) for rank in range(ranks)))
