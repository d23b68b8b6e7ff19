"""Cuts layers into stages so that the busiest rank has as little to do as possible, exactly.

::

    layers       3   1   1   2   1   4          K = 3
    cuts         3   1 │ 1   2   1 │ 4          loads 4, 4, 4: no other cut has a smaller maximum

    D[s][j] = min over i of max(D[s-1][i], load of stage s with layers i to j-1)       O(K n²)

A rank with one stage is a row of that recurrence, and a stage that would not fit into its rank's
memory is left out of it. Where a rank holds two stages, `pairs` finds the maximum of the ranks' sums by
bisection. Anything else (three or more stages per rank, several with a cap on memory) is searched depth
first, which may end before the result is proven. Between cuts with the same maximum the one with the most even loads is
taken, and then the one with heavier early stages, which cost less under 1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.planner.pairs import cut_pairs
from microp.planner.search_cuts import search_cut

Floats = NDArray[np.float64]
MOST_LAYERS = 1000  # the recurrence takes a square of it


@dataclass(frozen=True)
class Loads:
    """What the stages cost their ranks in a step: `scale[s] * (sum of its layers) + fixed[s]`.

    Attributes:
        layers: the time of each layer.
        scale: of each stage, for example 2 on a rank of half the speed.
        fixed: the time of each stage that does not depend on its layers.
        rank_of: the rank of each stage.
    """

    layers: tuple[float, ...]
    scale: tuple[float, ...]
    fixed: tuple[float, ...]
    rank_of: tuple[int, ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.rank_of)

    @property
    def sums(self) -> Floats:
        """The time of the layers before each layer, and of all layers at the end."""
        return np.concatenate([[0.0], np.cumsum(self.layers)])

    def of_ranks(self, sizes: Sequence[int]) -> Floats:
        """Return the load of each rank if the stages hold these numbers of layers."""
        ends = np.cumsum(sizes)
        times = self.sums[ends] - self.sums[ends - np.asarray(sizes)]
        loads = np.zeros(max(self.rank_of) + 1)
        np.add.at(loads, list(self.rank_of), np.asarray(self.scale) * times + np.asarray(self.fixed))
        return loads


class Room(NamedTuple):
    """The memory of the ranks, in bytes.

    Attributes:
        held: for each stage an array [first layer, end, moment]: what the stage holds at each moment of its rank's
            step if it has the layers from `first` to `end` - 1. The moments of a rank are the same for all its stages.
        caps: the memory of each rank.
    """

    held: Sequence[NDArray[Any]]
    caps: tuple[float, ...]

    def allows(self, stage: int, rank: int) -> NDArray[np.bool_]:
        """Return for every (first, end) whether this stage alone fits into the memory of `rank`."""
        return np.asarray((self.held[stage] <= self.caps[rank]).all(axis=-1))

    def fits(self, sizes: Sequence[int], rank_of: Sequence[int]) -> bool:
        """Return whether stages of these sizes fit."""
        together: list[Any] = [0.0] * len(self.caps)
        end = 0
        for stage, size in enumerate(sizes):
            together[rank_of[stage]] = together[rank_of[stage]] + self.held[stage][end, end + size]
            end += size
        return all(bool((np.asarray(each) <= cap).all()) for each, cap in zip(together, self.caps, strict=True))


class Cut(NamedTuple):
    """A partition and how good it is.

    Attributes:
        sizes: the number of layers of each stage.
        largest: the load of the busiest rank.
        proven: whether no partition has a smaller one.
    """

    sizes: tuple[int, ...]
    largest: float
    proven: bool = True


def cut(loads: Loads, room: Room | None = None) -> Cut | None:
    """Return the partition whose busiest rank has the smallest load, or None if no partition fits into the memory.

    Raises:
        ValueError: there are more stages than layers, or more than `MOST_LAYERS` layers.
    """
    layers = len(loads.layers)
    if layers > MOST_LAYERS:
        raise ValueError(f"{layers} layers are too many for an exact cut: use at most {MOST_LAYERS}")
    if loads.stages > layers:
        raise ValueError(f"{loads.stages} stages are more than {layers} layers: use at most {layers}")
    if len(set(loads.rank_of)) == loads.stages:
        found = _cut_in_a_row(loads, room)
        return None if found is None else Cut(found, _largest(loads, found))
    held, given = (
        None if room is None else (room.held, room.caps),
        (loads.sums, loads.scale, loads.fixed, loads.rank_of),
    )
    begin, proven = cut_pairs(*given)
    if begin is not None and proven and (room is None or room.fits(begin, loads.rank_of)):
        return Cut(begin, _largest(loads, begin))
    sizes, proven = search_cut(*given, held, begin)
    return None if sizes is None else Cut(sizes, _largest(loads, sizes), proven)


def _largest(loads: Loads, sizes: tuple[int, ...]) -> float:
    return float(loads.of_ranks(sizes).max())


def _cut_in_a_row(loads: Loads, room: Room | None) -> tuple[int, ...] | None:
    """Return the best sizes if every rank has one stage: the recurrence twice, for the maximum and for evenness."""
    tables = [_table(loads, stage, room) for stage in range(loads.stages)]
    worst = _solve(tables, np.maximum)
    if worst is None:
        return None
    limit = max(tables[stage][edge] for stage, edge in enumerate(pairwise(worst)))
    squares = [np.where(table <= limit, table**2, np.inf) for table in tables]
    edges = _solve(squares, np.add)
    assert edges is not None, "the cut with the smallest maximum keeps to its limit"
    return tuple(end - first for first, end in pairwise(edges))


def _table(loads: Loads, stage: int, room: Room | None) -> Floats:
    """Return the load of a stage for every (first, end); infinite where it has no layer, or does not fit."""
    sums = loads.sums
    table: Floats = loads.scale[stage] * (sums[None, :] - sums[:, None]) + loads.fixed[stage]
    table[np.tril_indices(len(sums))] = np.inf
    if room is not None:
        table[~room.allows(stage, loads.rank_of[stage])] = np.inf
    return table


def _solve(tables: Sequence[Floats], joined: np.ufunc) -> list[int] | None:
    """Return the edges of the stages for which the joined loads are smallest, or None if all are infinite.

    The recurrence of the module's picture, with `joined` in the place of max; between equal ways the last stages get
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
    if not np.isfinite(best[-1]):
        return None
    edges = [len(best) - 1]
    for chosen in reversed(choices):
        edges.append(int(chosen[edges[-1]]))
    return edges[::-1]
