"""V-Half: half the memory of 1F1B, with two stages per rank in the shape of a V."""

from __future__ import annotations

from microp.schedule.builders.building_block import repeat, squeeze
from microp.schedule.schedule import Schedule


def v_half(ranks: int, chunks: int) -> Schedule:
    """Return the repeated building block whose forwards go down the V at half speed; see `building_block`.

    ::

        rank 0  0F0 0F1   .   .   . 5F0 5B0 0F2 5W0 5F1 5B1 5W1 0B0 0W0   . 5F2 5B2 0B1 5W2 0W1   . 0B2 0W2
        rank 1    . 1F0 1F1   . 4F0   .   . 4B0 4F1 4W0 1F2 1B0 4B1 1W0 4F2 4W1 1B1 4B2 1W1 4W2 1B2 1W2   .
        rank 2    .   . 2F0 3F0 2F1 3F1   .   . 3B0 2B0 3W0 2F2 2W0 3F2 3B1 2B1 3W1 2W1 3B2 2B2 3W2 2W2   .

    Activations are held to W: K/2 + 1 microbatches on every rank, (K+1)/2 if K is odd. If M >= 2K
    the bubble is 3K-7 slots, 3K-4 if K is odd (K >= 3, every F, B and W of a stage takes one slot).
    Rank r holds stages r and 2K-1-r (Qi et al., Pipeline Parallelism with Controllable Memory,
    arXiv 2405.15362).
    """
    gap = 3 if ranks % 2 == 0 else 0
    block = [
        (2 * rank, 3 * ranks - 2 - rank, 3 * ranks + gap + 2 * rank - 1, 6 * ranks + gap - 2 - rank)
        for rank in range(ranks)
    ]
    return squeeze(repeat("v_half", block, chunks), limit=2 * (ranks // 2 + 1))
