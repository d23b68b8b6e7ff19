"""Chooses a partition for a schedule: the exact cut, refined by simulation.

::

    Loads ── cut ──► sizes with the smallest maximum ─┐
    uniform ─────────────────────────────────────────┴─► simulate; move layers while the step gets shorter

The load of the busiest rank is not the step: under 1F1B a heavy first stage costs less than a heavy last one. The
refinement begins with the better one of both partitions, so that it is never worse than either of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from microp import trace
from microp.job import Workload
from microp.planner.cuts import Cut, Room, cut
from microp.planner.held import Ranks
from microp.planner.prices import Prices
from microp.schedule import Partition, Schedule, uniform
from microp.settings import GIB, HOLDS_NOTHING, NEVER, Checkpointing, Holds
from microp.simulator import LayerMemory, simulate

EFFORT = 300_000  # actions that a refinement may simulate
CLOSE = 1e-9  # relative: a smaller gain is none


class NoRoomError(ValueError):
    """No partition fits into the memory of the ranks."""


@dataclass(frozen=True)
class Task:
    """What a partition is chosen for.

    Attributes:
        schedule: the order.
        rows: the rows of each microbatch.
        prices: the times of actions for any partition.
        checkpointing: what is recomputed.
        memory: the memory of each layer; None if no rank's memory is limited.
        cap: the bytes of memory that each rank has.
        batch: the bytes of the batch's text on the first and on the last rank.
        states: the tensors of a weight's size that the optimizer keeps for each weight.
        holds: as in `Workload`.
        notes: what the user should know about the choice; a builder adds to it.
    """

    schedule: Schedule
    rows: tuple[int, ...]
    prices: Prices
    checkpointing: Checkpointing = field(default_factory=lambda: NEVER)
    memory: Sequence[LayerMemory] | None = None
    cap: float | None = None
    batch: float = 0
    states: int = 2
    holds: Holds = HOLDS_NOTHING
    notes: list[str] = field(default_factory=list)

    def workload(self, sizes: Sequence[int]) -> Workload:
        """Return the workload with these numbers of layers."""
        return Workload(self.schedule, tuple(sizes), self.rows, self.checkpointing, self.states, self.holds)

    def step(self, sizes: Sequence[int]) -> float:
        """Return the simulated time of a step, in the unit of the prices, with the sums over replicas."""
        costs = self.prices.costs(self.workload(sizes))
        spans = simulate(self.schedule, costs)
        sums = trace.reductions(self.schedule, spans, costs.reduction) if costs.reduction else []
        return float(trace.ends_at(spans, sums) if sums else trace.makespan(spans))

    def ranks(self) -> Ranks | None:
        """Return the memory of the ranks, or None if it is not limited."""
        if self.memory is None or self.cap is None:
            return None
        return Ranks(
            self.schedule, self.memory, self.rows, self.checkpointing, self.batch, None, self.states, self.holds
        )

    def partition(self, layers: int, refine: bool) -> Partition:
        """Return the partition of `layers` that makes the step as short as possible, see `microp.schedule.balanced`.

        Raises:
            NoRoomError: no partition fits into the ranks' memory.
            ValueError: there are too many layers.
        """
        stages = self.schedule.stages
        even = uniform(layers, stages).sizes
        ranks = self.ranks()
        exact = exact_cut(self, layers, ranks)
        if exact is None:
            cap = (self.cap or 0) / GIB
            assert ranks is not None, "without a cap every partition fits"
            least = max(ranks.peaks(even)) / GIB
            raise NoRoomError(
                f"device.memory_gib={cap:g} is too little for any partition of {layers} layers into {stages} stages "
                f"(the uniform one needs {least:.3g} GiB): use more chunks, checkpointing=always or more ranks"
            )
        if not exact.proven:
            self.notes.append(
                f"partition=balanced {list(exact.sizes)}: its busiest rank computes {exact.largest:.4g}, the least "
                "that was found, which is not proven to be the least possible"
            )
        return Partition(refined(self, exact.sizes, even, ranks) if refine else exact.sizes)


def exact_cut(task: Task, layers: int, ranks: Ranks | None) -> Cut | None:
    """Return the partition whose busiest rank has the least to do, among those that fit into the memory."""
    loads = task.prices.loads(task.workload(uniform(layers, task.schedule.stages).sizes))
    found = cut(loads)
    if ranks is None or task.cap is None or (found is not None and max(ranks.peaks(found.sizes)) <= task.cap):
        return found  # to weigh every interval of layers takes longer than the cut
    return cut(loads, Room(ranks.held(), tuple(task.cap - batch for batch in ranks.batch)))


def refined(
    task: Task, exact: tuple[int, ...], even: tuple[int, ...], ranks: Ranks | None, effort: int = EFFORT
) -> tuple[int, ...]:
    """Return the sizes with the shortest step among those that single moves of layers lead to.

    The even partition wins ties. At most `effort` actions are simulated.
    """
    cap = task.cap

    @cache
    def fits(sizes: tuple[int, ...]) -> bool:
        return ranks is None or cap is None or max(ranks.peaks(sizes)) <= cap

    begin = [sizes for sizes in (even, exact) if fits(sizes)]
    times = {sizes: task.step(sizes) for sizes in begin}
    best = min(begin, key=lambda sizes: times[sizes])
    if begin[0] == even and times[even] <= times[best] * (1 + CLOSE):
        best = even
    actions = sum(map(len, task.schedule.ranks))
    left = max(2, effort // actions) - len(times)
    improved = True
    while improved:
        improved = False
        for sizes in _moves(best):
            if left <= 0:
                return best
            if sizes in times or not fits(sizes):
                continue
            times[sizes] = task.step(sizes)
            left -= 1
            if times[sizes] < times[best] * (1 - CLOSE):
                best, improved = sizes, True
                break
    return best


def _moves(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the partitions that differ by a layer which one stage gives and another one takes, near ones first."""
    stages = len(sizes)
    for distance in range(1, stages):
        for giver in range(stages):
            for taker in (giver - distance, giver + distance):
                if 0 <= taker < stages and sizes[giver] > 1:
                    moved = list(sizes)
                    moved[giver] -= 1
                    moved[taker] += 1
                    yield tuple(moved)
