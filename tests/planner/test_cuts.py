"""A cut's longest stage is as short as possible: compared with all partitions of a few layers."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from microp.planner import Loads, cut


def all_sizes(layers: int, stages: int):
    """Every partition."""
    for inner in combinations(range(1, layers), stages - 1):
        edges = (0, *inner, layers)
        yield tuple(end - first for first, end in pairwise(edges))


def longest(loads: Loads, sizes: tuple[int, ...]) -> float:
    edges = pairwise((0, *(sum(sizes[: stage + 1]) for stage in range(len(sizes)))))
    stages = zip(edges, loads.scale, loads.fixed, strict=True)
    return max(scale * sum(loads.layers[first:end]) + fixed for (first, end), scale, fixed in stages)


def test_no_partition_has_a_shorter_longest_stage():
    chance = random.Random(3)
    for _ in range(60):
        stages = chance.randint(1, 4)
        loads = Loads(
            layers=tuple(float(chance.choice([0, 1, 1, 2, 3, 7])) for _ in range(chance.randint(stages, 10))),
            scale=tuple(chance.choice([1.0, 1.0, 0.5, 2.0]) for _ in range(stages)),
            fixed=(float(chance.randint(0, 2)),) * stages,
        )
        sizes = cut(loads)
        assert (sum(sizes), min(sizes) >= 1) == (len(loads.layers), True)
        assert longest(loads, sizes) == min(longest(loads, each) for each in all_sizes(len(loads.layers), stages))


def plain(layers, stages: int) -> Loads:
    return Loads(tuple(map(float, layers)), (1.0,) * stages, (0.0,) * stages)


def test_the_even_cut_and_the_heavy_early_one_win_ties():
    assert cut(plain([1] * 16, 4)) == (4, 4, 4, 4)
    assert cut(plain([1] * 7, 2)) == (4, 3)
    assert cut(plain([1, 1, 1, 1, 9], 3)) == (2, 2, 1)


def test_a_slow_rank_gets_fewer_layers():
    assert cut(Loads((1.0,) * 14, (1.0, 1.0, 2.0, 1.0), (0.0,) * 4)) == (4, 4, 2, 4)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="3 stages are more than 2 layers: use at most 2"):
        cut(plain([1, 1], 3))
    with pytest.raises(ValueError, match="1001 layers are too many for an exact cut: use at most 1000"):
        cut(plain([1] * 1001, 3))
