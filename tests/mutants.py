"""Schedules with one thing wrong, or with another order: what a typo or a bad idea makes of one."""

import random
from collections.abc import Iterator
from dataclasses import replace

from microp.schedule import Action, Schedule

Rows = list[list[Action]]


def mutants(schedule: Schedule, seed: int, pairs: int = 10) -> Iterator[tuple[str, Schedule]]:
    """(what was done, the mutant): each action deleted, doubled, misplaced and swapped with its neighbour,
    and `pairs` random ones moved in their row, or swapped within it or across ranks."""
    rng = random.Random(seed)
    places = [(rank, place) for rank, row in enumerate(schedule.ranks) for place in range(len(row))]
    for rank, place in places:
        action = schedule.ranks[rank][place]
        others = [other for other in range(len(schedule.ranks)) if other != rank]
        yield "deleted", _edit(schedule, lambda rows, r=rank, p=place: rows[r].pop(p))
        there = rng.randint(0, len(schedule.ranks[rank]))
        yield "doubled", _edit(schedule, lambda rows, r=rank, t=there, a=action: rows[r].insert(t, a))
        if others:
            other = rng.choice(others)
            there = rng.randint(0, len(schedule.ranks[other]))
            yield "misplaced", _edit(schedule, lambda rows, a=(rank, place), b=(other, there): _move(rows, a, b))
        if place:
            yield "swapped", _edit(schedule, lambda rows, a=(rank, place - 1), b=(rank, place): _swap(rows, a, b))
    for _ in range(pairs):
        rank, place = rng.choice(places)
        there = (rank, rng.randrange(len(schedule.ranks[rank])))
        yield "moved", _edit(schedule, lambda rows, a=(rank, place), b=there: _move(rows, a, b))
        yield "swapped", _edit(schedule, lambda rows, a=(rank, place), b=there: _swap(rows, a, b))
        far = rng.choice(places)
        if far[0] != rank:
            yield "crossed", _edit(schedule, lambda rows, a=(rank, place), b=far: _swap(rows, a, b))


def _edit(schedule: Schedule, change) -> Schedule:
    rows: Rows = [list(row) for row in schedule.ranks]
    change(rows)
    return replace(schedule, name="mutant", ranks=tuple(map(tuple, rows)))


def _swap(rows: Rows, one: tuple[int, int], other: tuple[int, int]) -> None:
    (a, i), (b, j) = one, other
    rows[a][i], rows[b][j] = rows[b][j], rows[a][i]


def _move(rows: Rows, one: tuple[int, int], there: tuple[int, int]) -> None:
    rows[there[0]].insert(there[1], rows[one[0]].pop(one[1]))
