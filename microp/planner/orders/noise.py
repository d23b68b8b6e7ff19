"""Judges orders under noisy times: the best order on paper is not always the best when times vary.

Every action's time is multiplied by a random factor of median 1 (log-normal). The same action has the same factor in
all orders that are compared, so that they differ in their order alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import mean, quantiles
from typing import NamedTuple

from microp.planner.orders.problem import Problem, ends_of
from microp.schedule import Op, Schedule

DRAWS = 100


class Noisy(NamedTuple):
    """The makespans of an order over many draws, in the costs' unit."""

    mean: float
    p90: float


def judge(
    problem: Problem, schedules: Sequence[Schedule], noise: float, draws: int = DRAWS, seed: int = 0
) -> list[Noisy]:
    """Return how each order does if times vary.

    Args:
        problem: the placement and the costs.
        schedules: the orders.
        noise: the standard deviation of the logarithm of an action's time.
        draws: how often all times are drawn.
        seed: of the draws.
    """
    random = Random(seed)
    orders = [(problem.rows_of(schedule), _times_in(problem, schedule)) for schedule in schedules]
    found: list[list[float]] = [[] for _ in schedules]
    for _ in range(draws):
        factors = [random.lognormvariate(0, noise) for _ in problem.times]
        for (rows, times), own in zip(orders, found, strict=True):
            drawn = Problem(problem.placement, problem.chunks, problem.costs, problem.memory)
            drawn.__dict__.update(times=[time * factor for time, factor in zip(times, factors, strict=True)])
            ends = ends_of(drawn, rows)
            assert ends is not None
            own.append(float(max(ends)))
    return [Noisy(mean(own), quantiles(own, n=10)[-1]) for own in found]


def _times_in(problem: Problem, schedule: Schedule) -> list[float]:
    """Return the times of the actions in a schedule; an undivided backward is a B of its whole time and a W of none."""
    times, size = [float(time) for time in problem.times], problem.stages * problem.chunks
    for row in schedule.ranks:
        seen: dict[int, int] = {}
        for action in row:
            if action.op is not Op.B:
                continue
            turn = seen[action.stage] = seen.get(action.stage, -1) + 1  # its label after relabelling
            if action[1:] not in schedule.split:
                number = size + action.stage * problem.chunks + turn
                times[number] = float(problem.costs.of(action, False))
                times[number + size] = 0.0
    return times
