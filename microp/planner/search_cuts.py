"""Cuts layers for ranks that hold any number of stages, by a depth-first search with a bound.

::

    stage 0   1 layer  2 layers  3 layers ...       nearest to an even share first
                 │
    stage 1   1 layer  2 layers ...                 left out: a rank that would have more than the best so far,
                                                    or ranks that together cannot take the layers that are left

It begins with a partition that no move of a single layer improves, so that it has an answer at every moment. It ends
after `MOST_VISITS` visits; then the answer is the best one found, and is not proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from microp.planner.pairs import even_share

Floats = NDArray[np.float64]
Sizes = tuple[int, ...]
Held = tuple[Sequence[NDArray[Any]], tuple[float, ...]]
MOST_VISITS = 100_000
CLOSE = 1e-9  # relative: a smaller improvement is none


def search_cut(
    sums: Floats,
    scale: Sequence[float],
    fixed: Sequence[float],
    rank_of: Sequence[int],
    held: Held | None = None,
    begin: Sizes | None = None,
) -> tuple[Sizes | None, bool]:
    """Return the sizes with the smallest maximum over the ranks, and whether that is proven.

    Args:
        sums: the time before each layer, and of all layers at the end.
        scale: the factor of each stage.
        fixed: the time of each stage that does not depend on its layers.
        rank_of: the rank of each stage.
        held: for each stage the bytes that it holds by (first layer, end, moment), and the memory of each rank.
        begin: sizes that are known to be good.

    Returns:
        None if nothing that fits into the memory was found; then true if nothing does.
    """
    return _Search(sums, scale, fixed, rank_of, held).run(begin)


class _Search:
    def __init__(
        self, sums: Floats, scale: Sequence[float], fixed: Sequence[float], rank_of: Sequence[int], held: Held | None
    ) -> None:
        self._sums = [float(each) for each in sums]
        self._scale, self._fixed, self._rank_of, self._held = scale, fixed, rank_of, held
        self._layers, self._stages, self._ranks = len(sums) - 1, len(scale), max(rank_of) + 1
        self._visits = 0
        self._best: Sizes | None = None
        self._largest = float("inf")
        # What each rank still has to do for the stages from s on, whatever their layers are.
        self._later = [[0.0] * self._ranks for _ in range(self._stages + 1)]
        for stage in reversed(range(self._stages)):
            self._later[stage] = list(self._later[stage + 1])
            self._later[stage][rank_of[stage]] += fixed[stage]
        self._slowest = [[float("inf")] * self._ranks for _ in range(self._stages + 1)]  # the least factor from s on
        for stage in reversed(range(self._stages)):
            self._slowest[stage] = list(self._slowest[stage + 1])
            self._slowest[stage][rank_of[stage]] = min(self._slowest[stage][rank_of[stage]], scale[stage])

    def run(self, begin: Sizes | None) -> tuple[Sizes | None, bool]:
        if begin is not None:
            self._take(begin)
        base, extra = divmod(self._layers, self._stages)
        self._improve(tuple(base + (stage < extra) for stage in range(self._stages)))
        bound = self._bound()
        if self._best is not None and self._largest <= bound * (1 + CLOSE):
            return self._best, True
        used = [0.0] * self._ranks
        memory: list[Any] = [0.0] * self._ranks
        complete = self._visit(0, 0, used, memory, ())
        return self._best, complete

    def _improve(self, sizes: Sizes) -> None:
        """Move single layers between any two stages as long as that makes the busiest rank's load smaller."""
        value = self._value(sizes)
        self._take(sizes)
        improved = True
        while improved:
            improved = False
            for source in range(self._stages):
                for target in range(self._stages):
                    if source == target or sizes[source] == 1:
                        continue
                    moved = list(sizes)
                    moved[source] -= 1
                    moved[target] += 1
                    candidate = tuple(moved)
                    other = self._value(candidate)
                    if other < value:
                        sizes, value, improved = candidate, other, True
                        self._take(sizes)

    def _value(self, sizes: Sizes) -> tuple[float, float]:
        loads, end = [0.0] * self._ranks, 0
        for stage, size in enumerate(sizes):
            loads[self._rank_of[stage]] += self._load(stage, end, end + size)
            end += size
        return max(loads), sum(each * each for each in loads)

    def _take(self, sizes: Sizes) -> None:
        largest, _ = self._value(sizes)
        if largest < self._largest and self._fits(sizes):
            self._best, self._largest = sizes, largest

    def _fits(self, sizes: Sizes) -> bool:
        if self._held is None:
            return True
        held, caps = self._held
        memory: list[Any] = [0.0] * self._ranks
        end = 0
        for stage, size in enumerate(sizes):
            memory[self._rank_of[stage]] = memory[self._rank_of[stage]] + held[stage][end, end + size]
            end += size
        return all((np.asarray(each) <= cap).all() for each, cap in zip(memory, caps, strict=True))

    def _load(self, stage: int, first: int, end: int) -> float:
        return self._scale[stage] * (self._sums[end] - self._sums[first]) + self._fixed[stage]

    def _bound(self) -> float:
        """Return a load that some rank has in every partition."""
        fastest = self._slowest[0]
        share = even_share(self._sums, self._scale, self._fixed, self._rank_of)
        if not share:
            return 0.0
        times = np.diff(self._sums)
        bound = max(share, min(fastest) * float(times.max()))
        if times.max() == times.min() > 0:  # equal layers are not divided
            unit = float(times[0])
            candidates = sorted(
                {
                    fixed + factor * unit * count
                    for fixed, factor in zip(self._later[0], fastest, strict=True)
                    for count in range(self._layers + 1)
                }
            )
            for limit in candidates:
                taken = sum(
                    int((limit - fixed) / (factor * unit) + CLOSE) if limit >= fixed else 0
                    for fixed, factor in zip(self._later[0], fastest, strict=True)
                )
                if taken >= self._layers:
                    return max(bound, limit)
        return bound

    def _visit(self, stage: int, first: int, used: list[float], memory: list[Any], sizes: Sizes) -> bool:
        """Try all sizes of a stage; return whether nothing was left out."""
        if stage == self._stages:
            self._best, self._largest = sizes, max(used)
            return True
        self._visits += 1
        if self._visits > MOST_VISITS:
            return False
        rank, left = self._rank_of[stage], self._stages - stage - 1
        ends = range(first + 1 if left else self._layers, self._layers - left + 1)
        even = first + (self._layers - first) / (left + 1)
        complete = True
        for end in sorted(ends, key=lambda each: (abs(each - even), -each)):
            load = used[rank] + self._load(stage, first, end)
            limit = self._largest * (1 - CLOSE) if self._largest < float("inf") else self._largest
            if load + self._later[stage + 1][rank] >= limit:
                continue
            after = list(used)
            after[rank] = load
            if self._cannot_take_the_rest(stage + 1, end, after, limit):
                continue
            holds = memory
            if self._held is not None:
                together = memory[rank] + self._held[0][stage][first, end]
                if (together > self._held[1][rank]).any():
                    continue
                holds = list(memory)
                holds[rank] = together
            complete &= self._visit(stage + 1, end, after, holds, (*sizes, end - first))
            if self._visits > MOST_VISITS:
                return False
        return complete

    def _cannot_take_the_rest(self, stage: int, first: int, used: list[float], limit: float) -> bool:
        """Return whether the layers from `first` on are more than the ranks can take below the limit."""
        room = 0.0
        for rank, load in enumerate(used):
            rest = limit - load - self._later[stage][rank]
            if rest < 0:
                return True
            factor = self._slowest[stage][rank]
            if factor == 0:
                return False
            if factor < float("inf"):
                room += rest / factor
        return room < self._sums[-1] - self._sums[first]
