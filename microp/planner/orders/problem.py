"""The problem that a search for orders solves, and the fast judge of an order.

::

    rank 0   F0 F1 F2 . B0 W0 B1 W1 B2 W2       a rank's row is one merge of its lanes
             F0 F1 F2                           lane F of stage 0: microbatches come in order
                        B0    B1    B2          lane B
                           W0    W1    W2       lane W

Microbatches are alike, so that they can be relabelled without loss: the j-th F, B and W of a stage are those of
microbatch j. What is left to choose is, on each rank, how its lanes are merged. An action is a number here:
`lane * M + microbatch`, with the lanes F of all stages first, then B, then W.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from microp.schedule import Action, Op, Schedule
from microp.simulator import Costs

OPS = tuple(Op)
Rows = list[list[int]]
NONE = -1


@dataclass(frozen=True)
class Memory:
    """What a rank may hold, and what an action adds to it.

    Attributes:
        cap: the most that a rank may hold; None: no limit.
        kept: per stage, what F keeps for B.
        pending: per stage, what B keeps for W; at most what F kept.
    """

    cap: Any | None
    kept: tuple[Any, ...]
    pending: tuple[Any, ...]

    def __post_init__(self) -> None:
        for stage, (kept, pending) in enumerate(zip(self.kept, self.pending, strict=True)):
            if pending > kept:
                raise ValueError(
                    f"stage {stage} would keep {pending:g} from B to W, which is more than the {kept:g} from F to B: "
                    "give at most that"
                )


def pairs(stages: int, cap: int | None) -> Memory:
    """Return a memory in which every (stage, microbatch) pair counts 1 from its F to its W."""
    return Memory(cap, (1,) * stages, (1,) * stages)


@dataclass(frozen=True)
class Problem:
    """Costs, a placement of stages on ranks, and a cap, for which an order is to be found.

    Attributes:
        placement: for each stage its rank.
        chunks: M, the number of microbatches.
        costs: per stage and hop; hops are priced as a pure delay while searching.
        memory: the cap, and what actions hold.

    Raises:
        ValueError: no order keeps within the cap; the message says how much is needed at least.
    """

    placement: tuple[int, ...]
    chunks: int
    costs: Costs
    memory: Memory

    def __post_init__(self) -> None:
        cap, kept = self.memory.cap, self.memory.kept
        needs = [sum(kept[stage] for stage in own) for own in self.held]
        if cap is not None and max(needs) > cap:
            rank = needs.index(max(needs))
            raise ValueError(
                f"no order keeps within {cap:g}: rank {rank} has to hold one microbatch on its "
                f"{len(self.held[rank])} stages at once, {max(needs):g}, {max(needs) - cap:g} more than the cap"
            )

    @cached_property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.placement)

    @cached_property
    def ranks(self) -> int:
        """The number of ranks."""
        return max(self.placement) + 1

    @cached_property
    def held(self) -> list[list[int]]:
        """For each rank its stages."""
        return [[s for s, rank in enumerate(self.placement) if rank == own] for own in range(self.ranks)]

    @cached_property
    def lane_rank(self) -> list[int]:
        """For each lane its rank."""
        return [*self.placement] * 3

    @cached_property
    def lanes(self) -> list[list[int]]:
        """For each rank its lanes."""
        return [[lane for lane, rank in enumerate(self.lane_rank) if rank == own] for own in range(self.ranks)]

    @cached_property
    def takers(self) -> list[int]:
        """For each lane the lane that takes its tensor, or `NONE`."""
        found = [NONE] * len(self.sources)
        for lane, source in enumerate(self.sources):
            if source != NONE:
                found[source] = lane
        return found

    @cached_property
    def times(self) -> list[Any]:
        """For each action how long it takes; every backward is divided."""
        return [
            self.costs.of(Action(op, stage, microbatch), True)
            for op in OPS
            for stage in range(self.stages)
            for microbatch in range(self.chunks)
        ]

    @cached_property
    def sources(self) -> list[int]:
        """For each lane the lane whose tensor it takes, or `NONE`."""
        last = self.stages - 1
        forwards = [NONE, *range(last)]
        backwards = [*range(self.stages + 1, 2 * self.stages), NONE]
        return [*forwards, *backwards, *[NONE] * self.stages]

    @cached_property
    def hops(self) -> list[Any]:
        """For each lane the time of the hop of the tensor that it takes."""
        found = []
        for lane, source in enumerate(self.sources):
            near = source == NONE or self.lane_rank[source] == self.lane_rank[lane]
            found.append(0 if near else self.costs.hop(max(lane % self.stages, source % self.stages)))
        return found

    @cached_property
    def changes(self) -> list[Any]:
        """For each lane by how much its actions change what the rank holds."""
        kept, pending = self.memory.kept, self.memory.pending
        return [
            *kept,
            *(after - before for before, after in zip(kept, pending, strict=True)),
            *(-each for each in pending),
        ]

    def schedule(self, rows: Iterable[Sequence[int]], name: str = "found") -> Schedule:
        """Return rows of numbers as a schedule."""
        return Schedule(name, self.chunks, tuple(tuple(map(self.action, row)) for row in rows))

    def action(self, number: int) -> Action:
        """Return the action that a number stands for."""
        lane, microbatch = divmod(number, self.chunks)
        return Action(OPS[lane // self.stages], lane % self.stages, microbatch)

    def rows_of(self, schedule: Schedule) -> Rows:
        """Return a schedule with every backward divided and microbatches relabelled, so that each lane is in order."""
        return [self._relabelled(row, schedule) for row in schedule.ranks]

    def _relabelled(self, row: Sequence[Action], schedule: Schedule) -> list[int]:
        seen, found = [0] * (3 * self.stages), []
        for op, stage, microbatch in row:
            ops = (op,) if op is not Op.B or (stage, microbatch) in schedule.split else (Op.B, Op.W)
            for each in ops:
                lane = OPS.index(each) * self.stages + stage
                found.append(lane * self.chunks + seen[lane])
                seen[lane] += 1
        return found

    def peak(self, row: Sequence[int]) -> Any:
        """Return the most that a rank holds while it runs a row."""
        held = peak = 0
        for number in row:
            held += self.changes[number // self.chunks]
            peak = max(peak, held)
        return peak

    def fits(self, row: Sequence[int]) -> bool:
        """Return whether a row keeps within the cap."""
        return self.memory.cap is None or self.peak(row) <= self.memory.cap


def ends_of(problem: Problem, rows: Sequence[Sequence[int]]) -> list[Any] | None:
    """Return the end of every action, or None if the rows deadlock; rows may miss their last actions."""
    chunks, times, sources, hops = problem.chunks, problem.times, problem.sources, problem.hops
    ends: list[Any] = [None] * len(times)
    free: list[Any] = [0] * len(rows)
    reached = [0] * len(rows)
    waiting: dict[int, int] = {}
    runnable = list(range(len(rows)))
    while runnable:
        rank = runnable.pop()
        row, now = rows[rank], free[rank]
        for place in range(reached[rank], len(row)):
            number = row[place]
            lane = number // chunks
            source = sources[lane]
            if source >= 0:
                sender = number + (source - lane) * chunks
                there = ends[sender]
                if there is None:
                    waiting[sender] = rank
                    reached[rank], free[rank] = place, now
                    break
                there += hops[lane]
                if there > now:
                    now = there
            ends[number] = now = now + times[number]
            if number in waiting:
                runnable.append(waiting.pop(number))
    return None if waiting else ends


def makespan_of(problem: Problem, rows: Sequence[Sequence[int]]) -> Any | None:
    """Return the time from 0 to the last end, or None if the rows deadlock."""
    ends = ends_of(problem, rows)
    return None if ends is None else max(ends)
