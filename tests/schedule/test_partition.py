"""No layer is dropped, and sizes are what was asked for."""

from __future__ import annotations

from itertools import product

import pytest

from microp.schedule import Partition, of_sizes, skewed, spread, uniform


@pytest.mark.parametrize(("layers", "stages"), [(n, k) for n, k in product(range(1, 20), range(1, 9)) if k <= n])
def test_every_layer_is_on_one_stage(layers, stages):
    for partition in (uniform(layers, stages), *(skewed(layers, stages, 0.8, rank) for rank in range(stages))):
        held = [layer for stage in range(stages) for layer in partition.layers_of(stage)]
        assert held == list(range(layers))
        assert partition.layers == layers
        assert min(partition.sizes) >= 1


def test_uniform_spreads_the_remainder():
    assert uniform(16, 3).sizes == (6, 5, 5)
    assert spread(3, 5) == (1, 1, 1, 0, 0)
    assert max(uniform(17, 5).sizes) - min(uniform(17, 5).sizes) == 1


def test_skewed():
    assert skewed(16, 2).sizes == (13, 3)
    assert skewed(10, 4, 0.4, 2).sizes == (2, 2, 4, 2)
    assert skewed(16, 3, 0.8, 2).sizes == (2, 1, 13)
    assert skewed(8, 4, 0.8).sizes == (5, 1, 1, 1)  # every other rank keeps a layer
    assert skewed(4, 1).sizes == (4,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: uniform(3, 4), "4 stages are more than 3 layers: use at most 3"),
        (lambda: skewed(8, 2, 1.0), "share=1.0 is not between 0 and 1"),
        (lambda: skewed(8, 2, 0.0), "share=0.0 is not between 0 and 1"),
        (lambda: skewed(8, 2, 0.5, 2), "rank=2 is not one of the 2 ranks: use 0 to 1"),
        (lambda: of_sizes(8, 2, [3, 4]), r"sizes=\[3, 4\] add up to 7: they must add up to 8 layers"),
        (lambda: of_sizes(8, 2, [8]), r"sizes=\[8\] has length 1 for 2 stages: give one size per stage"),
        (lambda: of_sizes(8, 2, [8, 0]), "every stage needs at least 1 layer"),
        (lambda: Partition(()), "every stage needs at least 1 layer"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
