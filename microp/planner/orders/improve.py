"""Improves an order by small moves: two neighbours of a rank change places, or a W moves to another place.

::

    rank 0   ... [F3][B1] W0 ...        a swap on the critical path: what the makespan depends on
    rank 1   ... B2 W1 F5 .─► W1        a weight gradient moves to where the rank waits

A move is judged by pricing the whole order. Worse orders are accepted now and then, less and less (simulated
annealing); the best one is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from time import perf_counter
from typing import Any

from microp.planner.orders.problem import NONE, Problem, Rows, ends_of

START = 0.01  # the temperature in units of the makespan: a move that costs 1 % is accepted in 37 % of cases at first


def improve(problem: Problem, rows: Rows, random: Random, moves: int, until: float, bound: Any = 0) -> tuple[Any, Rows]:
    """Return the makespan and the rows of the best order found.

    Args:
        problem: the problem.
        rows: an order that ends and keeps within the cap.
        random: decides the moves.
        moves: how many are tried at most.
        until: when to stop, on the clock of `time.perf_counter`.
        bound: a lower bound of the makespan: an order that reaches it is returned at once.
    """
    rows = [row[:] for row in rows]
    ends = ends_of(problem, rows)
    assert ends is not None
    now = best = max(ends)
    kept = [row[:] for row in rows]
    path = _critical(problem, rows, ends)
    for move in range(moves):
        if best <= bound or perf_counter() > until:
            break
        heat = START * float(best) * (1 - move / moves)
        rank, row = _moved(problem, rows, path, random)
        if row is None or not problem.fits(row):
            continue
        before, rows[rank] = rows[rank], row
        found = ends_of(problem, rows)
        after = None if found is None else max(found)
        if found is None or (after > now and random.random() >= exp(-float(after - now) / max(heat, 1e-12))):
            rows[rank] = before
            continue
        now, ends = after, found
        path = _critical(problem, rows, ends)
        if now < best:
            best, kept = now, [each[:] for each in rows]
    return best, kept


def _critical(problem: Problem, rows: Sequence[Sequence[int]], ends: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the (rank, place) pairs on a critical path at which an action follows another without a gap."""
    last = max(range(len(rows)), key=lambda rank: ends[rows[rank][-1]])
    rank, place, found = last, len(rows[last]) - 1, []
    places: dict[int, int] = {}
    while True:
        row = rows[rank]
        number = row[place]
        start = ends[number] - problem.times[number]
        if place and ends[row[place - 1]] >= start:
            found.append((rank, place))
            place -= 1
            continue
        lane = number // problem.chunks
        source = problem.sources[lane]
        if source == NONE or start <= 0:
            return found
        sender = number + (source - lane) * problem.chunks
        rank = problem.lane_rank[source]
        if not places.get(sender):
            places = {each: at for at, each in enumerate(rows[rank])}
        place = places[sender]


def _moved(
    problem: Problem, rows: Rows, path: Sequence[tuple[int, int]], random: Random
) -> tuple[int, list[int] | None]:
    """Return a rank and its row after a random move; None instead of the row if the move is not allowed."""
    if path and random.random() < 0.7:
        rank, place = path[random.randrange(len(path))]
        row = rows[rank]
        if not _may_swap(problem, row[place - 1], row[place]):
            return rank, None
        return rank, [*row[: place - 1], row[place], row[place - 1], *row[place + 1 :]]
    rank, place = path[random.randrange(len(path))] if path and random.random() < 0.5 else (NONE, 0)
    if rank == NONE:
        rank = random.randrange(len(rows))
        place = random.randrange(len(rows[rank]))
    row = rows[rank]
    number = row[place]
    step = random.choice((-1, 1))
    limit = random.randint(1, 6)
    to = place
    while (
        0 <= to + step < len(row)
        and abs(to - place) < limit
        and _may_swap(problem, *sorted_by(step, number, row[to + step]))
    ):
        to += step
    if to == place:
        return rank, None
    without = row[:place] + row[place + 1 :]
    return rank, [*without[:to], number, *without[to:]]


def sorted_by(step: int, moving: int, other: int) -> tuple[int, int]:
    """Return the two in the order in which they are now, if the first moves by `step`."""
    return (moving, other) if step > 0 else (other, moving)


def _may_swap(problem: Problem, first: int, second: int) -> bool:
    """Return whether the second may come before the first, as far as their own rank knows."""
    lane, after = first // problem.chunks, second // problem.chunks
    if lane == after:
        return False
    if lane % problem.stages == after % problem.stages:  # F, B, W of one microbatch on one stage
        return after < lane or first % problem.chunks != second % problem.chunks
    return True
