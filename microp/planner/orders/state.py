"""A partial order while it is built from the front: each rank's clock, the counts of its lanes, what has arrived.

::

    ready(lane)    when its next action could start: the rank is free, the tensor is there, the memory suffices
    run(lane)      appends that action to the rank's row

A forward is refused if afterwards the oldest unfinished microbatch of the rank could not get its other stages in:
that order could never end. In-order lanes make the rule exact, so that no order that can end is lost.
"""

from __future__ import annotations

from typing import Any

from microp.planner.orders.problem import NONE, Problem, Rows


class State:
    """A partial order.

    Attributes:
        clock: for each rank when it is free.
        count: for each lane the number of its actions that have run.
        arrived: for each lane when the tensors that it takes arrive, as far as they have been made.
        held: for each rank what it holds.
        left: for each rank the time of the actions that have not run.
        rows: for each rank its actions so far, the last one first, as nested pairs.
    """

    __slots__ = ("arrived", "clock", "count", "held", "left", "rows")

    def __init__(self, problem: Problem) -> None:
        self.clock: list[Any] = [0] * problem.ranks
        self.count = [0] * len(problem.sources)
        self.arrived: list[list[Any]] = [[] for _ in problem.sources]
        self.held: list[Any] = [0] * problem.ranks
        self.left = [
            sum(problem.times[lane * problem.chunks + m] for lane in lanes for m in range(problem.chunks))
            for lanes in problem.lanes
        ]
        self.rows: list[Any] = [None] * problem.ranks

    def copy(self) -> State:
        """Return an independent copy."""
        other = State.__new__(State)
        other.clock, other.count, other.held = self.clock[:], self.count[:], self.held[:]
        other.arrived, other.left, other.rows = [each[:] for each in self.arrived], self.left[:], self.rows[:]
        return other

    def ready(self, problem: Problem, lane: int) -> Any | None:
        """Return when the lane's next action could start, or None if something that it needs has not run."""
        stages, microbatch = problem.stages, self.count[lane]
        if microbatch == problem.chunks:
            return None
        start = self.clock[problem.lane_rank[lane]]
        if lane >= stages:
            if self.count[lane - stages] <= microbatch:
                return None
        elif problem.memory.cap is not None and not self._has_room(problem, lane):
            return None
        if problem.sources[lane] != NONE:
            if len(self.arrived[lane]) <= microbatch:
                return None
            start = max(start, self.arrived[lane][microbatch])
        return start

    def _has_room(self, problem: Problem, stage: int) -> bool:
        rank, kept = problem.placement[stage], problem.memory.kept
        own, count = problem.held[rank], self.count
        oldest = min(count[2 * problem.stages + each] for each in own)
        needed = sum(kept[each] for each in own if count[each] <= oldest and (each != stage or count[stage] < oldest))
        room: bool = self.held[rank] + kept[stage] + needed <= problem.memory.cap
        return room

    def run(self, problem: Problem, lane: int, start: Any) -> int:
        """Run the lane's next action, and return the lane that takes its tensor, or `NONE`."""
        rank, microbatch = problem.lane_rank[lane], self.count[lane]
        number = lane * problem.chunks + microbatch
        time = problem.times[number]
        self.clock[rank] = end = start + time
        self.left[rank] -= time
        self.count[lane] += 1
        self.held[rank] += problem.changes[lane]
        self.rows[rank] = (number, self.rows[rank])
        taker = problem.takers[lane]
        if taker != NONE:
            self.arrived[taker].append(end + problem.hops[taker])
        return taker

    def finished(self) -> Rows:
        """Return the rows in their order."""
        found: Rows = []
        for row in self.rows:
            numbers = []
            while row is not None:
                number, row = row
                numbers.append(number)
            found.append(numbers[::-1])
        return found
