"""Lower bounds of the makespan of every order, with what each one counts.

::

    chain     one microbatch through all stages and back
    load      a rank's first input cannot come earlier, then all of its work, then the way of its last tensor
    memory    a rank under a cap holds each microbatch at least from its F to the way there and back

The largest of them is a bound; a solver's own bound may be better or worse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from microp.planner.orders.problem import NONE, Problem


class Bounds(NamedTuple):
    """Lower bounds, in the costs' unit of time."""

    chain: Any
    load: Any
    memory: Any

    @property
    def best(self) -> Any:
        """The largest."""
        return max(self)


def lower_bounds(problem: Problem) -> Bounds:
    """Return the lower bounds of a problem."""
    heads, tails = heads_of(problem), tails_of(problem)
    shortest = _shortest(problem)
    chain = max(head + time + tail for head, time, tail in zip(heads, shortest, tails, strict=True))
    return Bounds(
        chain, max(_load(problem, heads, tails, rank) for rank in range(problem.ranks)), _memory(problem, heads)
    )


def _shortest(problem: Problem) -> list[Any]:
    """Return for each lane the time of its shortest action."""
    chunks = problem.chunks
    return [min(problem.times[lane * chunks : (lane + 1) * chunks]) for lane in range(len(problem.sources))]


def heads_of(problem: Problem) -> list[Any]:
    """Return for each lane the earliest start of its first action."""
    stages, shortest = problem.stages, _shortest(problem)
    heads = [0] * len(problem.sources)
    for stage in range(1, stages):
        heads[stage] = heads[stage - 1] + shortest[stage - 1] + problem.hops[stage]
    for stage in reversed(range(stages)):
        lane, source = stages + stage, problem.sources[stages + stage]
        arrival = (
            heads[stage] + shortest[stage] if source == NONE else heads[source] + shortest[source] + problem.hops[lane]
        )
        heads[lane], heads[2 * stages + stage] = arrival, arrival + shortest[lane]
    return heads


def tails_of(problem: Problem) -> list[Any]:
    """Return for each lane the least time from the end of its last action to the end of the step."""
    stages, shortest = problem.stages, _shortest(problem)
    tails = [0] * len(problem.sources)
    for stage in range(stages):
        lane = stages + stage
        way = shortest[lane - 1] + tails[lane - 1] + problem.hops[lane - 1] if stage else 0
        tails[lane] = max(shortest[2 * stages + stage], way)
    for stage in reversed(range(stages)):
        after = stage + 1 if stage < stages - 1 else stages + stage
        hop = problem.hops[after] if stage < stages - 1 else 0
        tails[stage] = shortest[after] + tails[after] + hop
    return tails


def _load(problem: Problem, heads: list[Any], tails: list[Any], rank: int) -> Any:
    """Return the largest bound from the load of some of a rank's lanes: all that begin and end late enough."""
    chunks, lanes, best = problem.chunks, problem.lanes[rank], 0
    work = {lane: sum(problem.times[lane * chunks : (lane + 1) * chunks]) for lane in lanes}
    for least in {heads[lane] for lane in lanes}:
        for most in {tails[lane] for lane in lanes}:
            own = [work[lane] for lane in lanes if heads[lane] >= least and tails[lane] >= most]
            best = max(best, least + sum(own) + most) if own else best
    return best


def _memory(problem: Problem, heads: list[Any]) -> Any:
    """Return the largest bound from what a microbatch holds, how long it does at least, and the cap."""
    memory, stages, shortest = problem.memory, problem.stages, _shortest(problem)
    best = 0
    for own in problem.held if memory.cap else ():
        area = 0
        for stage in own:
            until_b = heads[stages + stage] - heads[stage] + shortest[stages + stage]  # from the start of F on
            area += memory.kept[stage] * until_b + memory.pending[stage] * shortest[2 * stages + stage]
        best = max(best, min(heads[stage] for stage in own) + _over(problem.chunks * area, memory.cap))
    return best


def _over(area: Any, cap: Any) -> Any:
    return -(-area // cap) if isinstance(area, int) and isinstance(cap, int) else area / cap
