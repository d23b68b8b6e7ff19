"""Builds orders by priority rules: each rank takes, of the actions that can start soon, the one that its rule prefers.

::

    score = when the action could start + the rule's delay for its op        the smallest score is next

    delays of F, B, W    0 0 0   whatever can start first
                         1 0 2   a backward that arrives within one forward is waited for; W fills what is left
    depth                the most forwards of a stage without their backward, from "as deep as 1F1B" on

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
DEPTHS = (1.0, 1.5, 2.0, None)


class Rule(NamedTuple):
    """A priority rule.

    Attributes:
        delays: of F, B and W, in mean times of an action: how long another op is waited for.
        depth: forwards without a backward on a stage, in units of the stages from it to the last one; None: no limit.
        deep: whether of two forwards the one of the later stage comes first, else that of the older microbatch.
    """

    delays: tuple[float, float, float]
    depth: float | None
    deep: bool


def rules(problem: Problem) -> Iterator[Rule]:
    """Yield all rules that differ for this problem."""
    for delays, depth, deep in product(DELAYS, DEPTHS, (True, False)):
        if deep or problem.stages > problem.ranks:
            yield Rule(delays, depth, deep)


def build(problem: Problem, rule: Rule) -> Rows | None:
    """Return the order of a rule, or None if the rule gets stuck."""
    state, stages = State(problem), problem.stages
    unit = sum(problem.times) / len(problem.times)
    delays = [unit * delay for delay in rule.delays]
    most = [problem.chunks] * stages
    if rule.depth is not None:
        most = [max(1, round((stages - stage) * rule.depth)) for stage in range(stages)]

    def best(rank: int) -> tuple[Any, Any, int, Any] | None:
        found = None
        for lane in problem.lanes[rank]:
            if lane < stages and state.count[lane] - state.count[stages + lane] >= most[lane]:
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
