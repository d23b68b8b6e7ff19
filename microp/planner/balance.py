"""Chooses a partition for a schedule by simulation: of all partitions, if they are few, else near two good ones.

::

    Loads ── cut ──► sizes whose longest stage is shortest ─┐
    uniform ───────────────────────────────────────────────┴─► the better one; move layers while the step gets shorter

The load of the busiest rank is not the step: under 1F1B a heavy first stage costs less than a heavy last one. A move
takes layers from one stage to another one. Several of the best partitions are moved on, not only the very best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain, combinations, islice, pairwise, zip_longest
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from microp import trace
from microp.job import Workload
from microp.planner.prices import Loads, Prices
from microp.schedule import Partition, uniform
from microp.simulator import PER_STAGE, Costs, LayerMemory, Ranks, simulate, step_times
from microp.system import GIB

MOST = 5_000  # partitions that are simulated at once
EFFORT = 1_000_000  # their actions
WIDTH = 48  # partitions that are kept to go on from
CLOSE = 1e-9  # relative: a smaller gain is none
MOST_LAYERS = 1000  # the recurrence of `cut` takes a square of it
Sizes = tuple[int, ...]
Floats = NDArray[np.float64]


class NoRoomError(ValueError):
    """No partition fits into the memory of the ranks."""


@dataclass(frozen=True)
class Task:
    """What a partition is chosen for.

    Attributes:
        base: what is run; the layers of its stages are not known yet.
        prices: the times of actions for any partition.
        memory: the memory of each layer; None if no rank's memory is limited.
        cap: the bytes of memory that each rank has.
        batch: as in `Ranks`.
    """

    base: Workload
    prices: Prices
    memory: Sequence[LayerMemory] | None = None
    cap: float | None = None
    batch: tuple[float, float] = (0, 0)

    def workload(self, sizes: Sequence[int]) -> Workload:
        """Return the workload with these numbers of layers, which every copy of the model has."""
        return self.base._replace(layers=tuple(sizes) * self.base.schedule.copies)

    def cut(self, even: Sequence[int]) -> Sizes:
        """Return the sizes whose longest stage is shortest, of one copy of the model; `even`: any sizes."""
        loads, depth = self.prices.loads(self.workload(even)), self.base.schedule.depth
        return cut(replace(loads, scale=loads.scale[:depth], fixed=loads.fixed[:depth]))

    def step(self, sizes: Sequence[int]) -> float:
        """Return the simulated time of a step, in the unit of the prices, with the sums over replicas."""
        costs, schedule = self.prices.costs(self.workload(sizes)), self.base.schedule
        spans = simulate(schedule, costs)
        sums = trace.reductions(schedule, spans, costs.reduction) if costs.reduction else []
        return float(trace.ends_at(spans, sums) if sums else trace.makespan(spans))

    def ranks(self) -> Ranks | None:
        """Return the memory of the ranks, or None if it is not limited."""
        if self.memory is None or self.cap is None:
            return None
        return Ranks(self.base, self.memory, self.batch)

    def partition(self, layers: int, refine: bool) -> Partition:
        """Return the partition of `layers` that makes the step as short as possible, see `microp.schedule.balanced`.

        Raises:
            NoRoomError: no partition fits into the ranks' memory.
            ValueError: there are too many layers.
        """
        even = uniform(layers, self.base.schedule.depth).sizes
        sizes: Sizes | None = self.cut(even)
        assert sizes is not None
        ranks, cap = self.ranks(), self.cap or 0
        if refine or (ranks is not None and max(ranks.peaks(self.workload(sizes).layers)) > cap):
            sizes = refined(self, [even, sizes], ranks)
        if sizes is None:
            assert ranks is not None, "without a cap every partition fits"
            least = max(ranks.peaks(self.workload(even).layers)) / GIB
            raise NoRoomError(
                f"device.memory_gib={cap / GIB:g} is too little for any partition of {layers} layers into "
                f"{len(even)} stages that was tried (the uniform one needs {least:.3g} GiB): use more chunks, "
                "checkpointing=always or more ranks"
            )
        return Partition(sizes)


class Steps:
    """Computes the steps of many partitions at once; the costs of equal stages are composed once."""

    def __init__(self, task: Task, layers: int) -> None:
        self._task, self._kinds = task, [*(task.prices.kinds or range(layers))] * task.base.schedule.copies
        self._known: dict[tuple[int, ...], list[float]] = {}  # a stage and the kinds of its layers -> its costs

    def __call__(self, partitions: Sequence[Sizes]) -> Floats:
        """Return the time of a step with each of these sizes, as `Task.step`."""
        times = np.array([self._stages(sizes) for sizes in partitions])  # by partition, stage and cost
        costs = self._task.prices.costs(self._task.workload(partitions[0]))
        columns: dict[str, Any] = dict(zip(_names(costs), map(tuple, times.transpose(2, 1, 0).copy()), strict=True))
        return step_times(self._task.base.schedule, replace(costs, boundary=(), **columns))

    def _stages(self, sizes: Sizes) -> list[list[float]]:
        """Return the costs of each stage, in the order of `_names`."""
        workload = self._task.workload(sizes)
        ends = enumerate(accumulate(workload.layers))
        keys = [(stage, *self._kinds[end - workload.layers[stage] : end]) for stage, end in ends]
        if any(key not in self._known for key in keys):
            costs = self._task.prices.costs(workload)
            costs = replace(costs, latency=tuple(map(costs.hop, range(len(keys)))))
            for key, *own in zip(keys, *(getattr(costs, name) for name in _names(costs)), strict=True):
                self._known.setdefault(key, own)
        return [self._known[key] for key in keys]


def _names(costs: Costs) -> list[str]:
    """Return the costs that a stage has; `latency` is that of the hop before it, with the tensor's own part."""
    return [name for name in PER_STAGE if name != "boundary" and getattr(costs, name)] + ["latency"]


def refined(task: Task, begin: Sequence[Sizes], ranks: Ranks | None) -> Sizes | None:
    """Return the sizes with the shortest step among those that fit into the memory, or None if none was found.

    It is the shortest of all partitions if there are at most `MOST`, with at most `EFFORT` actions. Else it is the
    shortest that moves of layers lead to: the `WIDTH` best partitions are kept, and all moves of these are tried.

    Args:
        begin: the partitions from which the search begins, of which the first one wins ties.
        ranks: their memory, of which equally fast partitions should take little; None: it does not count.
    """
    cap, layers, stages = task.cap, sum(begin[0]), len(begin[0])
    most = min(MOST, max(1, EFFORT // sum(map(len, task.base.schedule.ranks))))
    steps, times = Steps(task, layers), dict[Sizes, float]()

    @cache
    def peak(sizes: Sizes) -> float:
        return 0.0 if ranks is None else max(ranks.peaks(task.workload(sizes).layers))

    def excess(sizes: Sizes) -> float:
        return 0.0 if cap is None else max(0.0, peak(sizes) - cap)

    def best_with(partitions: Iterable[Sizes]) -> list[Sizes]:
        """Return the best of these partitions and of those before them, the fastest that fit or the smallest."""
        some = list(islice((sizes for sizes in dict.fromkeys(partitions) if sizes not in times), most))
        if some:
            times.update(zip(some, steps(some).tolist(), strict=True))
        unit = max(times.values()) * CLOSE or 1.0
        ordered = sorted(times, key=lambda sizes: round(times[sizes] / unit))  # equal ones in the order of their coming
        fitting = list(islice((sizes for sizes in ordered if not excess(sizes)), WIDTH))
        return fitting or sorted(ordered, key=excess)[:WIDTH]

    if comb(layers - 1, stages - 1) <= most:
        beam = best_with([*begin, *every_partition(layers, stages)])
    else:
        beam, before = best_with(chain(begin, *map(_moves, begin))), list[Sizes]()
        while beam != before:
            before, beam = beam, best_with(chain.from_iterable(zip_longest(*map(_moves, beam), fillvalue=beam[0])))
    if excess(beam[0]):
        return None
    return min((sizes for sizes in beam if times[sizes] <= times[beam[0]] * (1 + CLOSE)), key=peak)


def every_partition(layers: int, stages: int) -> list[Sizes]:
    """Return all partitions, even ones first, and of these the ones with heavier early stages."""
    found = [
        tuple(end - begin for begin, end in pairwise((0, *cuts, layers)))
        for cuts in combinations(range(1, layers), stages - 1)
    ]
    return sorted(found, key=lambda sizes: (sum(size * size for size in sizes), [-size for size in sizes]))


def _moves(sizes: Sizes) -> Iterator[Sizes]:
    """Yield the partitions that differ by 1, 2, 4 ... layers which one stage gives to another one, near ones first."""
    stages, count = len(sizes), 1
    while count < max(sizes):
        for distance in range(1, stages):
            for giver in range(stages):
                for taker in (giver - distance, giver + distance):
                    if 0 <= taker < stages and sizes[giver] > count:
                        moved = list(sizes)
                        moved[giver] -= count
                        moved[taker] += count
                        yield tuple(moved)
        count *= 2


def cut(loads: Loads) -> tuple[int, ...]:
    """Return the sizes with which the largest load of a stage is as small as possible, exactly.

    ::

        layers       3   1   1   2   1   4          K = 3
        cuts         3   1 │ 1   2   1 │ 4          loads 4, 4, 4: no other cut has a smaller maximum

        D[s][j] = min over i of max(D[s-1][i], load of stage s with layers i to j-1)       O(K n²)

    Between cuts with the same maximum the one with the most even loads is taken, and then the one with heavier early
    stages, which cost less under 1F1B. Where a rank holds several stages, the search by simulation begins here.

    Raises:
        ValueError: there are more stages than layers, or more than `MOST_LAYERS` layers.
    """
    layers, stages = len(loads.layers), len(loads.scale)
    if layers > MOST_LAYERS:
        raise ValueError(f"{layers} layers are too many for an exact cut: use at most {MOST_LAYERS}")
    if stages > layers:
        raise ValueError(f"{stages} stages are more than {layers} layers: use at most {layers}")
    sums = np.concatenate([[0.0], np.cumsum(loads.layers)])
    tables = []  # per stage its load for every (first, end); infinite where it has no layer
    for scale, fixed in zip(loads.scale, loads.fixed, strict=True):
        table = scale * (sums[None, :] - sums[:, None]) + fixed
        table[np.tril_indices(layers + 1)] = np.inf
        tables.append(table)
    edges = _solve(tables, np.maximum)
    largest = max(table[edge] for table, edge in zip(tables, pairwise(edges), strict=True))
    edges = _solve([np.where(table <= largest, table**2, np.inf) for table in tables], np.add)
    return tuple(end - first for first, end in pairwise(edges))


def _solve(tables: Sequence[Floats], joined: np.ufunc) -> list[int]:
    """Return the edges of the stages for which the joined loads are smallest.

    The recurrence of `cut`, with `joined` in the place of max; between equal ways the last stages get
    as few layers as possible.
    """
    best = np.full(len(tables[0]), np.inf)
    best[0] = 0.0
    choices = []
    for table in tables:
        values = joined(best[:, None], table)
        chosen = len(values) - 1 - np.argmin(values[::-1], axis=0)  # the last of equal ones
        best = values[chosen, np.arange(len(values))]
        choices.append(chosen)
    edges = [len(best) - 1]
    for chosen in reversed(choices):
        edges.append(int(chosen[edges[-1]]))
    return edges[::-1]
