"""Improves an order by small moves: two neighbours change places, a W moves, a backward is divided or joined.

::

    rank 0   ... [F3][I1] W0 ...        a swap on the critical path: what the makespan depends on
    rank 1   ... I2 W1 F5 .─► W1        a weight gradient moves to where the rank waits
    rank 2   ... I2 F5 W2 ─► B2 F5      a full backward, where it takes less than I and W

A move is judged by pricing the whole order. Worse orders are accepted now and then, less and less (simulated
annealing); the best one is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp
from random import Random
from time import perf_counter
from typing import Any

from microp.orders.bounds import Bounds
from microp.orders.problem import NONE, Problem, Rows, ends_of, makespan_of

START = 0.01  # the temperature in units of the makespan: a move that costs 1 % is accepted in 37 % of cases at first


def improve(problem: Problem, rows: Rows, random: Random, moves: int, until: float, bounds: Bounds) -> tuple[Any, Rows]:
    """Return the makespan and the rows of the best order found.

    Args:
        rows: an order that ends and keeps within the cap.
        until: when to stop, on the clock of `time.perf_counter`.
        bounds: lower bounds of the makespan: an order that reaches one is returned at once.
    """
    rows = [row[:] for row in rows]
    ends = ends_of(problem, rows)
    assert ends is not None
    now = best = _last(ends, rows)
    kept = [row[:] for row in rows]
    path = _critical(problem, rows, ends)
    for move in range(moves):
        if bounds.prove(best) or perf_counter() > until:
            break
        heat = START * float(best) * (1 - move / moves)
        rank, row = _moved(problem, rows, path, random)
        if row is None or not problem.fits(row):
            continue
        before, rows[rank] = rows[rank], row
        found = ends_of(problem, rows)
        after = None if found is None else _last(found, rows)
        if found is None or (after > now and random.random() >= exp(-float(after - now) / max(heat, 1e-12))):
            rows[rank] = before
            continue
        now, ends = after, found
        path = _critical(problem, rows, ends)
        if now < best:
            best, kept = now, [each[:] for each in rows]
    return best, kept


def _last(ends: Sequence[Any], rows: Sequence[Sequence[int]]) -> Any:
    return max(ends[row[-1]] for row in rows)


def _critical(problem: Problem, rows: Sequence[Sequence[int]], ends: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the (rank, place) pairs on a critical path at which an action follows another without a gap."""
    last = max(range(len(rows)), key=lambda rank: ends[rows[rank][-1]])
    rank, place, found = last, len(rows[last]) - 1, []
    places: dict[int, int] = {}
    while True:
        row = rows[rank]
        number = row[place]
        start = ends[number] - problem.timing.takes[number]
        before = row[place - 1]
        if place and ends[before] + problem.timing.after[problem.place(before)] >= start:
            found.append((rank, place))
            place -= 1
            continue
        number = problem.place(number)
        lane = number // problem.units
        source = problem.sources[lane]
        if source == NONE or start <= 0:
            return found
        sender = number + (source - lane) * problem.units
        rank = problem.lane_rank[source]
        if not places.get(sender):
            places = {problem.place(each): at for at, each in enumerate(rows[rank])}
        place = places[sender]


def _moved(
    problem: Problem, rows: Rows, path: Sequence[tuple[int, int]], random: Random
) -> tuple[int, list[int] | None]:
    """Return a rank and its row after a random move; None instead of the row if the move is not allowed."""
    if any(problem.joins) and random.random() < 0.1:
        rank = random.randrange(len(rows))
        return rank, _joined_or_divided(problem, rows[rank], random.randrange(len(rows[rank])))
    step, farthest = random.choice((-1, 1)), random.randint(1, 6)
    if path and random.random() < 0.85:
        rank, place = random.choice(path)
        if random.random() < 0.8:  # mostly an action of the critical path changes places with the one before it
            step, farthest = -1, 1
    else:
        rank = random.randrange(len(rows))
        place = random.randrange(len(rows[rank]))
    row, number = rows[rank], rows[rank][place]
    to = place
    while (
        0 <= to + step < len(row)
        and abs(to - place) < farthest
        and _may_swap(problem, *((number, row[to + step]) if step > 0 else (row[to + step], number)))
    ):
        to += step
    if to == place:
        return rank, None
    without = row[:place] + row[place + 1 :]
    return rank, [*without[:to], number, *without[to:]]


def _joined_or_divided(problem: Problem, row: Sequence[int], place: int) -> list[int] | None:
    """Return the row with a B as I and W, or with an I and its W as a B; None for another action."""
    number, pairs = row[place], problem.stages * problem.units
    if number >= problem.count:
        own = problem.place(number)
        return [*row[:place], own, own + pairs, *row[place + 1 :]]
    if not pairs <= number < 2 * pairs:
        return None
    return [number + 2 * pairs if each == number else each for each in row if each != number + pairs]


def joined(problem: Problem, rows: Rows) -> Rows:
    """Return the rows with every I and the W right behind it as a B, on each rank where the step gets no longer.

    A divided backward costs a run more than its price knows, so none is divided without need.
    """
    best, pairs = makespan_of(problem, rows), problem.stages * problem.units
    for rank, row in enumerate(rows):
        twins = {b for b, w in pairwise(row) if pairs <= b < 2 * pairs and w == b + pairs}
        trial = [each + 2 * pairs if each in twins else each for each in row if each - pairs not in twins]
        time = makespan_of(problem, [*rows[:rank], trial, *rows[rank + 1 :]])
        if time is not None and time <= best:
            rows, best = [*rows[:rank], trial, *rows[rank + 1 :]], time
    return rows


def _may_swap(problem: Problem, first: int, second: int) -> bool:
    """Return whether the second may come before the first, as far as their own rank knows."""
    if problem.slices > 1 and problem.beside(problem.place(second)) == problem.place(first):
        return False
    lane, after = first // problem.units, second // problem.units
    if lane == after:  # only units that are not alike
        return problem.kinds[first % problem.units] != problem.kinds[second % problem.units]
    if lane % problem.stages == after % problem.stages:  # F, I, W of one microbatch on one stage
        return after < lane or first % problem.units != second % problem.units
    return True
