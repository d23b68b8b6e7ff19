"""Cuts layers into stages so that the stage that takes longest takes as short as possible, exactly.

::

    layers       3   1   1   2   1   4          K = 3
    cuts         3   1 │ 1   2   1 │ 4          loads 4, 4, 4: no other cut has a smaller maximum

    D[s][j] = min over i of max(D[s-1][i], load of stage s with layers i to j-1)       O(K n²)

Between cuts with the same maximum the one with the most even loads is taken, and then the one with heavier early
stages, which cost less under 1F1B. Where a rank holds several stages, this is where the search by simulation begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_LAYERS = 1000  # the recurrence takes a square of it


@dataclass(frozen=True)
class Loads:
    """What the stages take in a step: `scale[s] * (sum of its layers) + fixed[s]`.

    Attributes:
        layers: the time of each layer.
        scale: of each stage, for example 2 on a rank of half the speed.
        fixed: the time of each stage that does not depend on its layers.
    """

    layers: tuple[float, ...]
    scale: tuple[float, ...]
    fixed: tuple[float, ...]


def cut(loads: Loads) -> tuple[int, ...]:
    """Return the sizes with which the largest load of a stage is as small as possible.

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
    edges = [len(best) - 1]
    for chosen in reversed(choices):
        edges.append(int(chosen[edges[-1]]))
    return edges[::-1]
