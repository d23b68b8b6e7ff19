"""What is refused of the memory of stages."""

from __future__ import annotations

import pytest

from microp.simulator import StageMemory


def test_refusals_name_the_key():
    with pytest.raises(ValueError, match=r"stage_memory.boundary has 2 values for 3 stages"):
        StageMemory((1, 1, 1), (1, 1))
    with pytest.raises(ValueError, match=r"stage_memory.pending\[1\]=-4 is negative"):
        StageMemory((1, 1), pending=(1, -4))
    with pytest.raises(ValueError, match=r"stage_memory.spared has -1: microbatches go from 0"):
        StageMemory((1, 1), spared=(-1,))
