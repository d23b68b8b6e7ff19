"""The V-shaped schedules that are made from a building block, and the memory they keep within."""

from __future__ import annotations

import pytest
from catalogue import held_peak, lengths, pictured

from microp.schedule import builders as schedules
from microp.schedule.builders import building_block
from microp.simulator import Costs, simulate
from microp.trace import makespan

LIMIT = {"v_half": lambda ranks: 2 * (ranks // 2 + 1), "v_min": lambda ranks: 2 * (-(-(ranks - 1) // 3) + 1)}


def test_repeat_sorts_by_slot() -> None:
    repeated = building_block.repeat("v", [(0, 3, 4, 7), (1, 2, 5, 6)], chunks=2)
    assert [" ".join(map(str, row)) for row in repeated.ranks] == [
        # slot 0   3   4   6   7   9   10  13
        "0F0 3F0 3B0 0F1 0B0 3F1 3B1 0B1",
        # slot 1   2   5   6   7   8   11  12
        "1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1",
    ]


def test_the_module_draws_the_block_of_v_min() -> None:
    rows = pictured(building_block.__doc__)
    starts = [[row.index(name) for name in ("F0", "F1", "B1", "B0")] for row in rows]
    assert starts == [[0, 3, 4, 7], [1, 2, 5, 6]]


@pytest.mark.parametrize("name", LIMIT)
def test_no_rank_holds_more_than_the_limit_and_one_reaches_it(name: str) -> None:
    for ranks, chunks in lengths(name):
        peak = max(held_peak(getattr(schedules, name)(ranks, chunks)))
        assert peak <= LIMIT[name](ranks)
        assert chunks < 2 * ranks or peak == LIMIT[name](ranks)


@pytest.mark.parametrize(
    ("name", "bubble"), [("v_half", {4: 5, 5: 11, 6: 11, 7: 17}), ("v_min", {2: 3, 3: 5, 4: 11, 6: 17})]
)
def test_published_bubbles(name: str, bubble: dict[int, int]) -> None:
    for ranks, slots in bubble.items():
        for chunks in (2 * ranks, 2 * ranks + 1, 5 * ranks):
            schedule = getattr(schedules, name)(ranks, chunks)
            spans = simulate(schedule, Costs(*[(1,) * (2 * ranks)] * 3))
            assert makespan(spans) == 6 * chunks + slots
