"""Some of a schedule's rows as text."""

from __future__ import annotations

import pytest
from drawn import read

from microp.schedule import Action
from microp.schedule import builders as schedules
from microp.schedule.format_rows import format_rows


def draw(schedule, *marked, width=100):
    return format_rows(schedule, set(map(Action.parse, marked)), width).splitlines()


def test_a_small_schedule_is_drawn_whole():
    assert draw(read("0F0 0B0 0F1 0B1", "1F0 1F1 1B0", chunks=2), "1F1", "0B1") == [
        "rank 0  0F0  0B0  0F1 [0B1]",
        "rank 1  1F0 [1F1] 1B0",
    ]


def test_of_a_large_one_what_is_near():
    assert draw(schedules.gpipe(9, 6), "4F5", width=52) == [
        "rank 3  …  3F2  3F3  3F4  3F5  3B0  3B1  3B2  …",
        "rank 4  …  4F2  4F3  4F4 [4F5] 4B0  4B1  4B2  …",
        "rank 5  …  5F2  5F3  5F4  5F5  5B0  5B1  5B2  …",
    ]
    assert draw(schedules.gpipe(2, 40), "0F0", "0B39", width=50) == [
        "rank 0 [0F0]  0F1   0F2   …  0B37  0B38 [0B39]",
        "rank 1  1F0   1F1   1F2   …  1B37  1B38  1B39",
    ]


def test_a_mark_is_made_wherever_the_action_stands():
    assert draw(read("0F0 0B0 0F0"), "0F0") == ["rank 0 [0F0] 0B0 [0F0]"]


def test_nothing_to_mark():
    assert draw(read("0F0 0B0"), "3F0") == []


@pytest.mark.parametrize("width", [30, 60, 100])
def test_lines_fit_whatever_is_marked(width):
    schedule = schedules.zb_v(64, 70)
    for every in (1, 7, 400):
        marked = {action for number, (_, action) in enumerate(schedule) if number % every == 0}
        lines = format_rows(schedule, marked, width).splitlines()
        assert 0 < len(lines) <= 8
        assert max(map(len, lines)) <= width
        assert any("[" in line for line in lines)
