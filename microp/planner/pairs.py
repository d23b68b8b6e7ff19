"""Cuts layers for ranks that hold two stages each, so that the largest sum of a rank is as small as possible.

::

    V       rank 0 │ rank 1 │ rank 1 │ rank 0         the ranks eat the layers from both ends
            ├──► x                 y ◄──┤             for each x, the smallest y

    looped  rank 0 │ rank 1 │ rank 0 │ rank 1         two fronts, the second one begins where the first one ends
            ├──► x          m ├──► y                  for each m and each x, the largest y

Both ask: if no rank may have more than T, how far do the first r ranks get? If a stage may be empty, fewer layers
left are never worse, so that the furthest way decides. Every stage needs a layer, though: the best partition with
layers everywhere is found by the same walk, a bisection over T, and is proven if even with empty stages nothing smaller
is possible. That fails only where single layers weigh as much as a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import truediv

import numpy as np
from numpy.typing import NDArray

from microp.schedule import uniform

Floats = NDArray[np.float64]
Sizes = tuple[int, ...]
CLOSE = 1e-9  # relative: sums of the same layers in another order differ by less
ROUNDING = 1e-12  # relative: of a sum, far below `CLOSE`


def cut_pairs(
    sums: Floats, scale: Sequence[float], fixed: Sequence[float], rank_of: Sequence[int]
) -> tuple[Sizes | None, bool]:
    """Return good sizes and whether they are proven to be the best.

    The sizes are None if the ranks do not hold two stages each in the form of a V or of a loop.

    Args:
        sums: the time before each layer, and of all layers at the end.
        scale: the factor of each stage.
        fixed: the time of each stage that does not depend on its layers.
        rank_of: the rank of each stage.
    """
    ranks = len(rank_of) // 2
    up = list(range(ranks))
    if list(rank_of) == up + up[::-1]:
        form: type[_V] | type[_Looped] = _V
    elif list(rank_of) == up + up:
        form = _Looped
    else:
        return None, False

    def largest(sizes: Sizes) -> float:
        ends = np.cumsum(sizes)
        loads = np.asarray(scale) * (sums[ends] - sums[ends - np.asarray(sizes)]) + np.asarray(fixed)
        both = np.zeros(ranks)
        np.add.at(both, list(rank_of), loads)
        return float(both.max())

    layers, share = len(sums) - 1, even_share(sums, scale, fixed, rank_of) * (1 - ROUNDING)

    def within(limit: float, least: int) -> Sizes | None:
        return form(sums, scale, fixed, least).sizes_within(limit) if limit >= share else None

    found = uniform(layers, len(rank_of)).sizes
    low, high = share, largest(found)
    while high > low and (better := within(high * (1 - CLOSE), 1)) is not None:
        found, high = better, largest(better)
        while high - low > CLOSE * high:
            middle = (low + high) / 2
            if (better := within(middle, 1)) is not None:
                found, high = better, largest(better)
                break
            low = middle
    return found, within(high * (1 - CLOSE), 0) is None


def even_share(
    sums: Floats | Sequence[float], scale: Sequence[float], fixed: Sequence[float], rank_of: Sequence[int]
) -> float:
    """Return a load that the busiest rank has in every partition: all of them have it if layers can be divided.

    Every layer then lies on the faster stage of its rank. 0 if a stage takes no time.
    """
    if min(scale) <= 0:
        return 0.0
    factor, always = [np.inf] * (max(rank_of) + 1), [0.0] * (max(rank_of) + 1)
    for stage, rank in enumerate(rank_of):
        factor[rank] = min(factor[rank], scale[stage])
        always[rank] += fixed[stage]
    return float((sums[-1] + sum(map(truediv, always, factor))) / sum(1 / each for each in factor))


class _V:
    """Stage r and stage 2K-1-r on rank r."""

    def __init__(self, sums: Floats, scale: Sequence[float], fixed: Sequence[float], least: int) -> None:
        self._sums, self._scale, self._fixed, self._least = sums, scale, fixed, least
        self._ranks = len(scale) // 2

    def sizes_within(self, limit: float) -> Sizes | None:
        """Return sizes with which no rank has more than `limit`, or None."""
        sums, layers, ranks, least = self._sums, len(self._sums) - 1, self._ranks, self._least
        back = np.full(layers + 1, layers + 1)  # for each x the smallest y; more than all layers: x is not reached
        back[0] = layers
        steps = []
        for rank in range(ranks):
            left = 2 * (ranks - rank - 1) * least  # layers that the other ranks need
            other = 2 * ranks - 1 - rank
            x, ends = np.flatnonzero(back <= layers)[:, None], np.arange(layers + 1)[None, :]
            if not len(x):
                return None
            y = back[x]
            rest = limit - self._scale[rank] * (sums[ends] - sums[x]) - self._fixed[rank] - self._fixed[other]
            lowest = np.maximum(_lowest(sums, y, rest, self._scale[other]), ends + left)
            good = (ends >= x + least) & (lowest <= y - least) & (rest >= 0)
            lowest = np.where(good, lowest, layers + 1)
            best = np.argmin(lowest, axis=0)  # of equal ones the first x
            reached = lowest[best, ends[0]]
            came = np.where(reached <= layers, x[best, 0], -1)
            steps.append((back, came))
            back = reached
        met = np.flatnonzero(back == np.arange(layers + 1))
        if not len(met):
            return None
        return self._edges(int(met[0]), steps)

    @staticmethod
    def _edges(x: int, steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Sizes:
        front, rear, y = list[int](), list[int](), x
        for back, came in reversed(steps):
            before = int(came[x])
            front.append(x - before)
            rear.append(int(back[before]) - y)
            x, y = before, int(back[before])
        return (*front[::-1], *rear)


class _Looped:
    """Stage r and stage K+r on rank r."""

    def __init__(self, sums: Floats, scale: Sequence[float], fixed: Sequence[float], least: int) -> None:
        self._sums, self._scale, self._fixed, self._least = sums, scale, fixed, least
        self._ranks = len(scale) // 2

    def sizes_within(self, limit: float) -> Sizes | None:
        """Return sizes with which no rank has more than `limit`, or None."""
        sums, layers, ranks, least = self._sums, len(self._sums) - 1, self._ranks, self._least
        mids = np.arange(ranks * least, layers - ranks * least + 1)
        far = np.full((len(mids), layers + 1), -1)  # for each m and x the largest y; -1: x is not reached
        far[:, 0] = mids
        steps = []
        for rank in range(ranks):
            other, left = ranks + rank, (ranks - rank - 1) * least
            reached, came = np.full_like(far, -1), np.full_like(far, -1)
            for x in np.flatnonzero((far >= 0).any(axis=0)):
                ends = np.arange(x + least, layers - ranks * least - left + 1)
                if not len(ends):
                    continue
                rest = limit - self._scale[rank] * (sums[ends] - sums[x]) - self._fixed[rank] - self._fixed[other]
                y = far[:, x]
                highest = _highest(sums, np.maximum(y, 0)[:, None], rest[None, :], self._scale[other])
                highest = np.minimum(highest, layers - left)
                good = (
                    (highest >= y[:, None] + least) & (y >= 0)[:, None] & (rest >= 0) & (ends <= mids[:, None] - left)
                )
                better = good & (highest > reached[:, ends])
                reached[:, ends] = np.where(better, highest, reached[:, ends])
                came[:, ends] = np.where(better, x, came[:, ends])
            steps.append((far, came))
            far = reached
        met = np.flatnonzero(far[np.arange(len(mids)), mids] == layers)
        if not len(met):
            return None
        return self._edges(int(met[0]), int(mids[met[0]]), layers, steps)

    @staticmethod
    def _edges(row: int, x: int, y: int, steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Sizes:
        first, second = [], []
        for far, came in reversed(steps):
            before = int(came[row, x])
            first.append(x - before)
            second.append(y - int(far[row, before]))
            x, y = before, int(far[row, before])
        return (*first[::-1], *second[::-1])


def _lowest(sums: Floats, end: NDArray[np.int64], rest: Floats, scale: float) -> NDArray[np.int64]:
    """Return the smallest first layer of a stage that ends before layer `end` and takes at most `rest`."""
    if scale == 0:
        return np.zeros(rest.shape, np.int64)
    first: NDArray[np.int64] = np.searchsorted(sums, sums[end] - rest / scale, side="left")
    return first


def _highest(sums: Floats, first: NDArray[np.int64], rest: Floats, scale: float) -> NDArray[np.int64]:
    """Return the largest end of a stage that begins with layer `first` and takes at most `rest`."""
    if scale == 0:
        return np.full(np.broadcast_shapes(first.shape, rest.shape), len(sums) - 1)
    end: NDArray[np.int64] = np.searchsorted(sums, sums[first] + rest / scale, side="right") - 1
    return end
