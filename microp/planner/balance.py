"""Chooses a partition for a schedule by simulation: of all partitions, if they are few, else near two good ones.

::

    layers' weights ── level ──► sizes whose stages take about as long ─┐
    uniform ────────────────────────────────────────────────────────────┴─► move layers while the step gets shorter

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
from microp.planner.prices import Prices
from microp.schedule import Partition, uniform
from microp.simulator import PER_STAGE, Costs, Ranks, simulate, step_times

MOST = 5_000  # partitions that are simulated at once
EFFORT = 1_000_000  # their actions
WIDTH = 48  # partitions that are kept to go on from
CLOSE = 1e-9  # relative: a smaller gain is none
POWER = 32  # of the stages' times, whose sum a level partition has least of: close to the longest of them
Sizes = tuple[int, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """What a partition is chosen for."""

    base: Workload  # what is run; the layers of its stages are not known yet
    prices: Prices  # the times of actions for any partition
    # the ranks' memory, of which equally fast partitions should take little; None: it does not count
    ranks: Ranks | None = None
    cap: float | None = None  # the bytes of memory that each rank has; None: no limit

    def workload(self, sizes: Sequence[int]) -> Workload:
        """Return the workload with these numbers of layers, which every copy of the model has."""
        return self.base._replace(layers=tuple(sizes) * self.base.schedule.copies)

    def step(self, sizes: Sequence[int]) -> float:
        """Return the simulated time of a step, in the unit of the prices, with the sums over replicas or copies."""
        costs, schedule = self.prices.costs(self.workload(sizes)), self.base.schedule
        spans = simulate(schedule, costs)
        sums = trace.reductions(schedule, spans, costs.reduction) if costs.reduction else []
        return float(trace.ends_at(spans, sums) if sums else trace.makespan(spans))

    def partition(self, layers: int) -> Partition:
        """Return the partition of `layers` that makes the step as short as possible, see `microp.schedule.balanced`.

        Where none that was tried fits into the memory it is the uniform one, which is refused with what would fit.
        """
        return Partition(refined(self, layers) or uniform(layers, self.base.schedule.depth).sizes)


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


def refined(task: Task, layers: int) -> Sizes | None:
    """Return the sizes with the shortest step among those that fit into the memory, or None if none was found.

    It is the shortest of all partitions if there are at most `MOST`, with at most `EFFORT` actions. Else it is the
    shortest that moves of layers lead to, from the uniform partition, which wins ties, and a level one: the `WIDTH`
    best partitions are kept, and all moves of these are tried.
    """
    ranks, cap, stages = task.ranks, task.cap, task.base.schedule.depth
    even = uniform(layers, stages).sizes
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
        beam = best_with([even, *every_partition(layers, stages)])
    else:
        begin = [even, level(task, even)]
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


def level(task: Task, even: Sizes) -> Sizes:
    """Return the sizes whose stages take about as long, of one copy of the model; the search by simulation begins here.

    ::

        layers       3   1   1   2   1   4          K = 3
        sizes        3   1 │ 1   2   1 │ 4          stages of 4, 4, 4

        D[s][j] = min over i of D[s-1][i] + (time of stage s with layers i to j-1) ** POWER      O(K n²)

    A stage's time is that of its layers by their weights, in the proportion that it has in the uniform partition.
    """
    workload = task.workload(even)
    spans = simulate(workload.schedule, task.prices.costs(workload))
    sums = np.concatenate([[0.0], np.cumsum(task.prices.weights(workload))])
    took = np.bincount(spans.stage, (spans.end - spans.start).astype(float))[: len(even)]
    weighed = np.diff(sums[np.cumsum((0, *even))])
    mean = np.full(len(even), took.sum() / (sums[-1] or 1.0))  # of a stage without weight
    rates = np.divide(took, weighed, out=mean, where=weighed > 0) / (took.mean() or 1.0)
    none = np.tri(len(sums), dtype=bool)  # (first layer, end) without a layer
    best, firsts = np.where(np.arange(len(sums)), np.inf, 0.0), []
    for rate in rates:
        with np.errstate(over="ignore"):  # of a stage that is far too long
            times = np.where(none, np.inf, rate * (sums[None, :] - sums[:, None])) ** POWER
        firsts.append(np.argmin(best[:, None] + times, axis=0))
        best = np.min(best[:, None] + times, axis=0)
    edges = [len(sums) - 1]
    for first in reversed(firsts):
        edges.append(int(first[edges[-1]]))
    return tuple(end - first for first, end in pairwise(reversed(edges)))
