"""Builds orders by priority rules: each rank takes, of the actions that can start soon, the one that its rule prefers.

::

    score = when the action could start + the rule's delay for its op        the smallest score is next

    delays of F, I, W    0 0 0   whatever can start first
                         1 0 2   a backward that arrives within one forward is waited for; W fills what is left
    window               on how many microbatches a rank may work: how far its forwards may run ahead

(A rank's decisions are taken in the order of time over all ranks, so that nothing that is unknown can arrive earlier.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from microp.orders.problem import NONE, Problem, Rows

DELAYS = ((0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 4))
WINDOWS = (None, 1, 2, 3, 4, 6)


def by_rules(problem: Problem) -> Iterator[Rows]:
    """Yield the order of every rule, as far as the rule does not get stuck."""
    for window, delays in product(WINDOWS, DELAYS):
        if window is None or window * problem.slices < problem.units:
            rows = _build(problem, delays, window)
            if rows is not None:
                yield rows


def _build(problem: Problem, delays: Sequence[float], window: int | None) -> Rows | None:
    """Return the order of a rule, or None if the rule gets stuck.

    Args:
        delays: of F, I and W, in mean times of an action: how long another op is waited for.
        window: the most microbatches that a rank works on; None: the cap alone limits the forwards.
    """
    state, stages = State(problem), problem.stages
    unit = sum(problem.timing.takes[: problem.count]) / problem.count
    delays = [unit * delay for delay in delays]
    last = [stages + own[0] for own in problem.held]  # for each rank the lane whose end frees a place in its window
    most = problem.units if window is None else window * problem.slices

    def best(rank: int) -> tuple[Any, Any, int, int] | None:
        """Return when the rank's preferred action could start, its score, its lane and the rank."""
        choice = None
        for lane in problem.lanes[rank]:
            if lane < stages and state.count[lane] - state.count[last[rank]] >= most:
                continue
            start = state.ready(problem, lane)
            if start is not None:
                op, stage = divmod(lane, stages)
                score = (start + delays[op], (1, 0, 2)[op], -stage)
                if choice is None or score < choice[1]:
                    choice = start, score, lane, rank
        return choice

    choices = [best(rank) for rank in range(problem.ranks)]
    for _ in range(problem.count):
        known = [choice for choice in choices if choice is not None]
        if not known:
            return None
        start, _, lane, rank = min(known)
        taker = state.run(problem, lane, start)
        choices[rank] = best(rank)
        if taker >= 0:
            choices[problem.lane_rank[taker]] = best(problem.lane_rank[taker])
    return state.rows


class State:
    """A partial order while it is built from the front.

    A forward is refused if afterwards the oldest unfinished microbatch of the rank could not get its other stages in:
    that order could never end. In-order lanes make the rule exact, so that no order that can end is lost. Every
    backward is divided here, and messages do not queue; the order that is built is priced with what it really takes.
    """

    def __init__(self, problem: Problem) -> None:
        self.clock: list[Any] = [0] * problem.ranks  # when each is free
        self.count = [0] * len(problem.sources)  # for each lane how many of its actions have run
        self.arrived: list[list[Any]] = [[] for _ in problem.sources]  # when the tensors that each lane takes arrive
        self.held = [0] * problem.ranks  # what each holds
        self.rows: Rows = [[] for _ in range(problem.ranks)]  # the actions of each so far

    def ready(self, problem: Problem, lane: int) -> Any | None:
        """Return when the lane's next action could start, or None if something that it needs has not run."""
        stages, place = problem.stages, self.count[lane]
        if place == problem.units:
            return None
        start = self.clock[problem.lane_rank[lane]]
        if lane >= stages:
            if self.count[lane - stages] <= (place if lane >= 2 * stages else problem.turn(lane, place)):
                return None
        elif not self._has_room(problem, lane):
            return None
        if problem.sources[lane] != NONE:
            if len(self.arrived[lane]) <= place:
                return None
            start = max(start, self.arrived[lane][place])
        return start

    def _has_room(self, problem: Problem, stage: int) -> bool:
        rank = problem.placement[stage]
        own, count, slices, depth = problem.held[rank], [*self.count], problem.slices, problem.depth
        oldest, copy = min((count[2 * problem.stages + each] // slices, each // depth) for each in own)
        count[stage] += 1
        needed = sum(max(0, (oldest + 1) * slices - count[each]) for each in own if each // depth == copy)
        return problem.cap is None or self.held[rank] + 1 + needed <= problem.cap

    def run(self, problem: Problem, lane: int, start: Any) -> int:
        """Run the lane's next action, and return the lane that takes its tensor, or `NONE`."""
        rank, unit = problem.lane_rank[lane], problem.turn(lane, self.count[lane])
        number = lane * problem.units + unit
        takes, hops, after = problem.timing
        end = start + takes[number]
        self.clock[rank] = end + after[number]
        self.count[lane] += 1
        self.held[rank] += problem.changes[lane]
        self.rows[rank].append(number)
        taker = problem.takers[lane]
        if taker != NONE:
            self.arrived[taker].append(end + hops[taker * problem.units + unit])
        return taker
