"""Builds orders by priority rules: each rank takes, of the actions that can start soon, the one that its rule prefers.

::

    score = when the action could start + the rule's delay for its op        the smallest score is next

    delays of F, B, W    0 0 0   whatever can start first
                         1 0 2   a backward that arrives within one forward is waited for; W fills what is left
    limit                how far forwards may run ahead of backwards, per stage or per rank

(A rank's decisions are taken in the order of time over all ranks, so that nothing that is unknown can arrive earlier.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from microp.planner.orders.problem import Problem, Rows
from microp.planner.orders.state import State

DELAYS = (
    (0, 0, 0),
    (0, 0, 1),
    (0, 0, 4),
    (0.5, 0, 2),
    (1, 0, 1),
    (1, 0, 4),
    (0, 0.5, 1),
    (0, 1, 0.5),
    (2, 0, 1),
    (2, 0, 0.5),
)
LIMITS = (None, ("depth", 1.0), ("depth", 1.5), ("depth", 2.0), ("depth", 0.5), ("depth", 0.75))
WINDOWS = (2, 3, 4, 5, 6, 8)


class Rule(NamedTuple):
    """A priority rule.

    Attributes:
        delays: of F, B and W, in mean times of an action: how long another op is waited for.
        limit: what limits the forwards: ("depth", x): those of a stage without a backward are at most x times the
            stages from it to the last one; ("window", n): a rank works on at most n microbatches; None: the cap alone.
        deep: whether of two forwards the one of the later stage comes first, else that of the older microbatch.
    """

    delays: tuple[float, float, float]
    limit: tuple[str, float] | None
    deep: bool


def rules(problem: Problem) -> Iterator[Rule]:
    """Yield all rules that differ for this problem."""
    windows = [("window", float(each)) for each in WINDOWS if each < problem.chunks]
    for limit, delays, deep in product((*LIMITS, *windows), DELAYS, (True, False)):
        if deep or problem.stages > problem.ranks:
            yield Rule(delays, limit, deep)


def build(problem: Problem, rule: Rule) -> Rows | None:
    """Return the order of a rule, or None if the rule gets stuck."""
    state, stages = State(problem), problem.stages
    unit = sum(problem.times) / len(problem.times)
    delays = [unit * delay for delay in rule.delays]
    most = [problem.chunks] * stages
    last = [stages + own[0] for own in problem.held]  # for each rank the lane whose end frees a place in its window
    if rule.limit is not None and rule.limit[0] == "depth":
        most = [max(1, round((stages - stage) * rule.limit[1])) for stage in range(stages)]
    window = rule.limit[1] if rule.limit is not None and rule.limit[0] == "window" else problem.chunks

    def best(rank: int) -> tuple[Any, Any, int, Any] | None:
        found = None
        for lane in problem.lanes[rank]:
            if lane < stages:
                ahead = state.count[lane] - state.count[stages + lane]
                if ahead >= most[lane] or state.count[lane] - state.count[last[rank]] >= window:
                    continue
            start = state.ready(problem, lane)
            if start is not None:
                op, stage = divmod(lane, stages)
                tie = -stage if rule.deep or op else state.count[lane] * stages + stage
                score = (start + delays[op], (1, 0, 2)[op], tie)
                if found is None or score < found[0]:
                    found = score, start, lane, rank
        return found and (found[1], found[0], found[2], found[3])

    choices = [best(rank) for rank in range(problem.ranks)]
    for _ in problem.times:
        known = [choice for choice in choices if choice is not None]
        if not known:
            return None
        start, _, lane, rank = min(known)
        taker = state.run(problem, lane, start)
        choices[rank] = best(rank)
        if taker >= 0:
            choices[problem.lane_rank[taker]] = best(problem.lane_rank[taker])
    return state.finished()
