"""Two directions of flow on one V."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule import Action, Schedule, rows
from microp.schedules.phases import play


def dualpipe_v(ranks: int, chunks: int) -> Schedule:
    """Rank r holds stages r and 2K-1-r; in the steady phase a forward of one stage goes with a backward of the other.

    ::

        rank 0  0F0 0F1 0F2 3F0 3B0 3W0 3F1 0F3 3B1   = 3F2 0B0   = 3B2   = 3F3   . 0B1   = 3B3   = 0B2 0W2 0B3 0W3
        rank 1    . 1F0 2F0 1F1 2F1 1F2 2B0   = 2F2 1B0   = 1F3 2B1   = 2F3 1B1   = 2B2   = 1B2   = 2B3 1B3 2W3 1W3

    A backward without a W is whole, and two slots long here. Such a forward and such a backward
    are meant to be computed as one block, the one's messages under the other's arithmetic; here
    they follow each other, which keeps the order and leaves (K-1)(F+B-W)/2 of bubble.
    K + 1/2 microbatches are held on every rank (DeepSeek-V3, arXiv 2412.19437, section 3.2.1,
    where ranks hold both ends of a pipeline; cut in half to a V, github.com/deepseek-ai/DualPipe).

    Raises:
        ValueError: there are fewer than 2K chunks.
    """
    if chunks < 2 * ranks:
        raise ValueError(
            f"schedule 'dualpipe_v' needs chunks of at least 2 x ranks: chunks={chunks}, ranks={ranks}; "
            f"use chunks={2 * ranks} or more"
        )

    def row(rank: int) -> Iterator[Action]:
        below, half, odd = ranks - rank - 1, (rank + 1) // 2, (rank + 1) % 2
        phases = [
            (2 * below, "F0"),
            (rank + 1, "F0 F1"),
            (below, "B1 W F1"),
            (chunks - 2 * ranks + rank + 1, "F0 X1 F1 X0"),
            (below, "X1 F1 X0"),
            (half, "X1 X0"),
            (odd, "X1 B0"),
            (half, "B1 B0"),
            (below, "W B0"),
            (rank + 1, "W"),
        ]
        return play(phases, (rank, 2 * ranks - 1 - rank), chunks)

    return Schedule("dualpipe_v", chunks, rows(row(rank) for rank in range(ranks)))
