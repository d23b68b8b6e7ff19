"""Lower bounds of the makespan of every order, with what each one counts.

::

    chain     one microbatch through all stages and back
    load      a rank's first input cannot come earlier, then all of its work, then the way of its last tensor
    memory    a rank under a cap holds each microbatch at least from its F to the way there and back

They are of a relaxed problem, in which every price is at most that of `simulate`: on a stage where a full backward
takes less than I and W, these take together no longer than it.

::

    full      |─────── 5 ───────|            b' = min(b, full), w' = min(w, full - b')
    relaxed   |──── b' 4 ────|w'|            I, W as given if that is not longer

The tensor leaves earlier, the rank is free no later, and an order that divides that backward takes no less.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from numbers import Rational
from typing import Any, NamedTuple

from microp.orders.problem import NONE, Problem, Timing

ROUNDING = 1e-9  # relative: of a sum of floats, which is not exact


class Bounds(NamedTuple):
    """Lower bounds of the makespan of any order, in the costs' unit of time; `solver` is 0 if it was not asked."""

    chain: Any
    load: Any
    memory: Any
    solver: Any = 0

    @property
    def best(self) -> Any:
        """The largest."""
        return max(self)

    def prove(self, makespan: Any) -> bool:
        """Return whether no order is faster than one with this makespan."""
        exact = isinstance(makespan, Rational) and isinstance(self.best, Rational)
        return bool(makespan <= (self.best if exact else self.best * (1 + ROUNDING)))


def lower_bounds(problem: Problem) -> Bounds:
    """Return the lower bounds of a problem."""
    timing = _relaxed(problem)
    heads, tails = _heads(problem, timing), _tails(problem, timing)
    shortest = _shortest(problem, timing)
    chain = max(head + time + tail for head, time, tail in zip(heads, shortest, tails, strict=True))
    loads = (_load(problem, timing, heads, tails, rank) for rank in range(problem.ranks))
    whole = all(isinstance(each, int) for times in timing for each in times)
    return Bounds(chain, max(loads), _memory(problem, heads, shortest, whole))


def _relaxed(problem: Problem) -> Timing:
    """Return times of I and W, with the overhead between them, that are no longer than a full backward's."""
    (takes, hops, after), units, stages = problem.timing, problem.units, problem.stages
    takes, after = takes[:], after[:]
    for stage in (stage for stage, joins in enumerate(problem.joins) if joins):
        lane, overhead = stages + stage, problem.overhead[stage]
        for number in range(lane * units, (lane + 1) * units):
            full, weight = takes[number + 2 * stages * units], number + stages * units
            takes[number] = min(takes[number], full)
            between = min(overhead, full - takes[number])
            takes[weight] = min(takes[weight], full - takes[number] - between)
            after[number] += between - overhead
    return Timing(takes[: problem.count], hops, after)


def _shortest(problem: Problem, timing: Timing) -> list[Any]:
    """Return for each lane the time of its shortest action."""
    return [min(timing.takes[_own(problem, lane)]) for lane in range(len(problem.sources))]


def _own(problem: Problem, lane: int) -> slice:
    """Return the numbers of a lane's actions."""
    return slice(lane * problem.units, (lane + 1) * problem.units)


def _way(problem: Problem, timing: Timing, source: int, lane: int) -> Any:
    """Return the least time between the end of an action and the next one of its microbatch."""
    near = problem.lane_rank[source] == problem.lane_rank[lane]
    return min(timing.after[_own(problem, source)] if near else timing.hops[_own(problem, lane)])


def _heads(problem: Problem, timing: Timing) -> list[Any]:
    """Return for each lane the earliest start of its first action."""
    stages, shortest = problem.stages, _shortest(problem, timing)
    heads = [0] * len(problem.sources)

    def follow(lane: int, source: int) -> None:
        heads[lane] = heads[source] + shortest[source] + _way(problem, timing, source, lane)

    for stage in range(stages):
        if problem.sources[stage] != NONE:
            follow(stage, stage - 1)
    for stage in reversed(range(stages)):
        lane = stages + stage
        follow(lane, stage if problem.sources[lane] == NONE else problem.sources[lane])
        follow(stages + lane, lane)
    return heads


def _tails(problem: Problem, timing: Timing) -> list[Any]:
    """Return for each lane the least time from the end of its last action to the end of the step."""
    stages, shortest, takers = problem.stages, _shortest(problem, timing), problem.takers
    tails = [0] * len(problem.sources)

    def before(lane: int, follower: int) -> Any:
        return _way(problem, timing, lane, follower) + shortest[follower] + tails[follower]

    for stage in range(stages):
        lane = stages + stage
        tails[lane] = max(before(lane, stages + lane), before(lane, lane - 1) if takers[lane] != NONE else 0)
    for stage in reversed(range(stages)):
        tails[stage] = before(stage, stage + 1 if takers[stage] != NONE else stages + stage)
    return tails


def _load(problem: Problem, timing: Timing, heads: list[Any], tails: list[Any], rank: int) -> Any:
    """Return the largest bound from the load of some of a rank's lanes: all that begin and end late enough."""
    lanes, best = problem.lanes[rank], 0
    after = {lane: timing.after[_own(problem, lane)] for lane in lanes}
    work = {lane: sum(timing.takes[_own(problem, lane)]) + sum(after[lane]) for lane in lanes}
    for least in {heads[lane] for lane in lanes}:
        for most in {tails[lane] for lane in lanes}:
            own = [lane for lane in lanes if heads[lane] >= least and tails[lane] >= most]
            if own:  # what comes after the last action is a part of its tail
                load = sum(work[lane] for lane in own) - max(max(after[lane]) for lane in own)
                best = max(best, least + load + most)
    return best


def _memory(problem: Problem, heads: list[Any], shortest: list[Any], whole: bool) -> Any:
    """Return the largest bound from how long a microbatch holds its place at least, and the cap.

    It is rounded up if every makespan is a `whole` number.
    """
    stages, best = problem.stages, 0
    if problem.cap is None:
        return best
    for own in problem.held:
        area = 0
        for stage in own:
            until_b = heads[stages + stage] - heads[stage] + shortest[stages + stage]  # from the start of F on
            area += until_b + shortest[2 * stages + stage]
        quotient = (Fraction(area) if isinstance(area, Rational) else area) * problem.units / problem.cap
        best = max(best, min(heads[stage] for stage in own) + (ceil(quotient) if whole else quotient))
    return best
