"""A third of the memory of 1F1B, on two stages a rank laid as a V."""

from __future__ import annotations

from microp.schedule import Schedule
from microp.schedules.building_block import repeat, squeeze


def v_min(ranks: int, chunks: int) -> Schedule:
    """The shortest building block there is: microbatch 0 goes down, up, down and up the V; see `building_block`.

    ::

        rank 0  0F0   .   . 3F0 3B0 0F1 3W0 0B0 0W0 3F1 3B1 0F2 3W1 0B1 0W1 3F2 3B2 3W2   . 0B2 0W2
        rank 1    . 1F0 2F0   .   . 2B0 1B0 1F1 2F1 2W0 1W0 2B1 1B1 1F2 2F2 2W1 1W1 2B2 1B2 2W2 1W2

    Held, up to W: at most ceil((K-1)/3) + 1 microbatches. From M = 2K on the bubble is 4K-5
    slots, 4K-7 if 3 divides K (K >= 2, every F, B and W of a stage one slot). Rank r holds
    stages r and 2K-1-r (Qi et al., Pipeline Parallelism with Controllable Memory,
    arXiv 2405.15362).
    """
    gap = 2 if ranks % 3 == 0 else 0
    block = [(rank, 2 * ranks - 1 - rank, 2 * ranks + gap + rank, 4 * ranks + gap - 1 - rank) for rank in range(ranks)]
    return squeeze(repeat("v_min", block, chunks), limit=2 * ((ranks + 1) // 3 + 1))
