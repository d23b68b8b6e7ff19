"""Circles of actions that wait for each other: real, the smallest, and found in time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from drawn import read

from microp.schedule import Action, Op, Schedule, deadlock
from microp.schedule import builders as schedules
from microp.schedule.deadlock import find_cycle


def waits(schedule: Schedule) -> dict[Action, set[Action]]:
    """Every action -> its parents and all that stands before it in its row."""
    return {
        action: {*row[:place], *schedule.parents(action)} for row in schedule.ranks for place, action in enumerate(row)
    }


def smallest(schedule: Schedule) -> int:
    """The length of the smallest circle by looking from every action; 0 if there is none."""
    needs, best = waits(schedule), 0
    for start in needs:
        layer, seen, length = {start}, set(), 0
        while layer and start not in seen and (best == 0 or length < best):
            layer = set().union(*(needs[action] for action in layer)) - seen
            seen |= layer
            length += 1
        if start in seen:
            best = min(best or length, length)
    return best


def shuffled(seed: int) -> Iterator[Schedule]:
    """Valid orders, each with some actions moved, so that most of them are stuck."""
    rng = random.Random(seed)
    for _ in range(150):
        build = rng.choice([schedules.one_f_one_b, schedules.gpipe, schedules.zb_v, schedules.interleaved])
        schedule = build(rng.randint(1, 4), rng.randint(1, 4))
        rows = [list(row) for row in schedule.ranks]
        for _ in range(rng.randint(1, 4)):
            row = rng.choice(rows)
            row.insert(rng.randrange(len(row)), row.pop(rng.randrange(len(row))))
        yield replace(schedule, ranks=tuple(map(tuple, rows)))


@pytest.mark.parametrize("seed", range(4))
def test_the_circle_is_real_and_the_smallest(seed):
    stuck = 0
    for schedule in shuffled(seed):
        circle = find_cycle(schedule)
        assert max(0, len(circle) - 1) == smallest(schedule)
        if circle:
            stuck += 1
            needs = waits(schedule)
            assert circle[0] == circle[-1]
            assert all(need in needs[action] for action, need in pairwise(circle))
    assert stuck > 50


def test_a_circle_across_ranks():
    stuck = read("0F0 0B0 0F1 0B1", "1F1 1F0 1B1 1B0", chunks=2)
    assert list(map(str, find_cycle(stuck))) == ["0B0", "1B0", "1F1", "0F1", "0B0"]
    assert find_cycle(read("0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1", chunks=2)) == []  # out of order, but it runs


def test_a_small_circle_behind_a_large_one():
    """The ranks' heads wait for each other in a circle of 4; further on one of 2 is hidden."""
    stuck = read("0F0 0B0 0F1 0B1 0B2 0F2", "1F1 1F0 1B1 1B0 1F2 1B2", chunks=3)
    assert list(map(str, find_cycle(stuck))) == ["0B2", "0F2", "0B2"]


def test_a_circle_through_every_rank():
    """Each rank's second stage comes first: up and down the whole pipeline."""
    ranks = 40
    rows = (
        (Action(Op.F, ranks + r, 0), Action(Op.F, r, 0), Action(Op.B, ranks + r, 0), Action(Op.B, r, 0))
        for r in range(ranks)
    )
    circle = find_cycle(Schedule("ring", 1, tuple(rows)))
    assert len(circle) == ranks + 2
    assert {str(circle[0]), str(circle[1])} <= {f"{stage}F0" for stage in range(2 * ranks)}


def test_many_stuck_actions_take_no_time(monkeypatch):
    schedule = schedules.one_f_one_b(64, 128)
    reversed_rows = replace(schedule, ranks=tuple(row[::-1] for row in schedule.ranks))
    # no circle of one rank: microbatches come in another order on each, so that all wait for all
    rng = random.Random(1)
    orders = [rng.sample(range(128), 128) for _ in range(64)]
    mixed = tuple(tuple(Action(op, rank, m) for m in order for op in (Op.F, Op.B)) for rank, order in enumerate(orders))
    for stuck in (reversed_rows, Schedule("mixed", 128, mixed)):
        start = time.process_time()
        circle = find_cycle(stuck)
        assert time.process_time() - start < 5
        needs = waits(stuck)
        assert all(need in needs[action] for action, need in pairwise(circle))
    monkeypatch.setattr(deadlock, "LOOKS", 0)
    longer = find_cycle(stuck)
    assert len(longer) >= len(circle)
    assert all(need in needs[action] for action, need in pairwise(longer))
