"""V-Min: a third of the memory of 1F1B, with two stages per rank in the shape of a V."""

from __future__ import annotations

from microp.schedule.builders.building_block import repeat, squeeze
from microp.schedule.schedule import Schedule


def v_min(ranks: int, chunks: int) -> Schedule:
    """Return the shortest building block, repeated: F goes down and up the V, then B does; see `building_block`.

    ::

        rank 0  0F0   .   . 3F0 3B0 0F1 3W0 0B0 0W0 3F1 3B1 0F2 3W1 0B1 0W1 3F2 3B2 3W2   . 0B2 0W2
        rank 1    . 1F0 2F0   .   . 2B0 1B0 1F1 2F1 2W0 1W0 2B1 1B1 1F2 2F2 2W1 1W1 2B2 1B2 2W2 1W2

    Activations are held to W: at most ceil((K-1)/3) + 1 microbatches. If M >= 2K the bubble is
    4K-5 slots, 4K-7 if 3 divides K (K >= 2, every F, B and W of a stage takes one slot). Rank r
    holds stages r and 2K-1-r (Qi et al., Pipeline Parallelism with Controllable Memory,
    arXiv 2405.15362).
    """
    gap = 2 if ranks % 3 == 0 else 0
    block = [(rank, 2 * ranks - 1 - rank, 2 * ranks + gap + rank, 4 * ranks + gap - 1 - rank) for rank in range(ranks)]
    return squeeze(repeat("v_min", block, chunks), limit=2 * ((ranks + 1) // 3 + 1))
