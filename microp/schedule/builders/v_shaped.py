"""Two stages per rank in the shape of a V, as tables of phases: rank r holds stages r and 2K-1-r."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import dualpipe_phases, play
from microp.schedule.schedule import Action, Schedule, overlapped, rows


def zb_v(ranks: int, chunks: int) -> Schedule:
    """Return ZB-V: rank r holds stages r and 2K-1-r, so that backwards begin on the rank of the first stage.

    ::

        rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2   .
        rank 1    . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

    No rank waits between its first and its last action if F = I = W and M >= 2K-1, and every rank
    holds K microbatches. Fewer chunks take the same order without the microbatches that do not
    exist (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6).
    """
    most = max(chunks, 2 * ranks - 1)

    def row(rank: int) -> Iterator[Action]:
        below = ranks - rank
        phases = [
            (2 * below - 1, "F0"),
            (rank, "F1 F0"),
            (below, "F1 I1 W1"),
            (most - ranks - below + 1, "F0 I0 W0 F1 I1 W1"),
            (below - 1, "I0 W0 F1 I1 W1"),
            (rank, "I0 I1"),
            (below, "I0 W0"),
            (rank, "W1"),
            (rank, "W0"),
        ]
        return play(phases, (rank, 2 * ranks - 1 - rank), chunks)

    return Schedule("zb_v", chunks, rows(row(rank) for rank in range(ranks)))


def dualpipe_v(ranks: int, chunks: int) -> Schedule:
    """Return DualPipeV: rank r holds stages r and 2K-1-r and pairs a forward of one with a backward of the other.

    ::

        rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1   = 3F2 0B0   = 3B2   = 3F3   . 0B1   = 3B3   = 0I2 0W2 0I3 0W3
        rank 1    . 1F0 2F0 1F1 2F1 1F2 2B0   = 2F2 1B0   = 1F3 2B1   = 2F3 1B1   = 2B2   = 1B2   = 2I3 1I3 2W3 1W3

    A B is two slots long here. F and B of the steady phase are pairs, in which the messages of one are hidden by
    the arithmetic of the other. Where a pair has no time of its own the two run one after the other, which leaves a
    bubble of (K-1)(F+I-W)/2. Every rank holds K + 1/2 microbatches (DeepSeek-V3, arXiv 2412.19437, section 3.2.1,
    where ranks hold both ends of a pipeline; cut in half to a V by github.com/deepseek-ai/DualPipe).

    Raises:
        ValueError: `chunks` is below 2K.
    """
    if chunks < 2 * ranks:
        raise ValueError(
            f"schedule 'dualpipe_v' needs chunks of at least 2 x ranks: chunks={chunks}, ranks={ranks}; "
            f"use chunks={2 * ranks} or more"
        )

    def row(rank: int) -> Iterator[Action]:
        return play(dualpipe_phases(rank, ranks, chunks), (rank, 2 * ranks - 1 - rank), chunks)

    order = rows(row(rank) for rank in range(ranks))
    return Schedule("dualpipe_v", chunks, order, pairs=overlapped(order, apart=[ranks - 1]))
