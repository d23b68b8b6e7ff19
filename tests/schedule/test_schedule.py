"""The value, its one dependency rule, and partitions."""

from itertools import product

import pytest
from drawn import read

from microp.schedule import Action, Op, Partition, of_sizes, skewed, spread, uniform, weight_groups
from microp.schedule.builders import Drain, gpipe


def test_actions_are_spelled_as_torch_does():
    action = Action(Op.F, 1, 0)
    assert str(action) == "1F0"
    assert Action.parse("12B34") == Action(Op.B, 12, 34)
    with pytest.raises(ValueError, match="'1X0' is not an action"):
        Action.parse("1X0")


def test_the_dependency_rule():
    schedule = gpipe(3, 2)
    parents = {str(a): [str(p) for p in schedule.parents(a)] for _, a in schedule}
    assert parents["0F1"] == []
    assert parents["2F1"] == ["1F1"]
    assert parents["2B1"] == ["2F1"]
    assert parents["1B1"] == ["1F1", "2B1"]
    divided = read("0F0 0I0 0W0", "1F0 1I0 1W0", "2F0 2B0")
    assert [str(p) for p in divided.parents(Action(Op.W, 1, 0))] == ["1I0"]
    assert [str(p) for p in divided.parents(Action(Op.I, 0, 0))] == ["0F0", "1I0"]
    assert [str(p) for p in divided.parents(Action(Op.I, 1, 0))] == ["1F0", "2B0"]
    assert str(schedule.source(Action.parse("1B1"))) == "2B1"
    assert schedule.source(Action.parse("2B1")) is None
    assert str(schedule.consumers[Action.parse("0F1")]) == "1F1"
    assert gpipe(1, 3, Drain.lifo).ranks == read("0F0 0F1 0F2 0B2 0B1 0B0", chunks=3).ranks
    [row] = read("0I0 0W0 0W1 1W0 0B2").ranks  # W of one stage that stand together are one group
    assert weight_groups(row) == {row[1]: (), row[2]: (0, 1)}


def test_stages_that_train_nothing_have_no_w():
    schedule = read("0F0 0I0 0W0 2F0 2B0", "1F0 1I0 1W0").without_weight_gradients([1, 2])
    assert schedule.ranks == read("0F0 0I0 0W0 2F0 2I0", "1F0 1I0").ranks
    assert schedule.name == "drawn_frozen"
    assert schedule.last_gradients == {0: Action.parse("0W0")}
    with pytest.raises(ValueError, match="there is no stage 3: stages go from 0 to 2"):
        schedule.without_weight_gradients([0, 3])


# --- no layer is dropped, and sizes are what was asked for ----------------------------------------
def test_every_layer_is_on_one_stage():
    for layers, stages in ((n, k) for n, k in product(range(1, 20), range(1, 9)) if k <= n):
        for partition in (uniform(layers, stages), *(skewed(layers, stages, 0.8, rank) for rank in range(stages))):
            held = [layer for stage in range(stages) for layer in partition.layers_of(stage)]
            assert held == list(range(layers))
            assert partition.layers == layers
            assert min(partition.sizes) >= 1


def test_uniform_spreads_the_remainder_and_skewed_leaves_every_other_rank_a_layer():
    assert uniform(16, 3).sizes == (6, 5, 5)
    assert spread(3, 5) == (1, 1, 1, 0, 0)
    assert max(uniform(17, 5).sizes) - min(uniform(17, 5).sizes) == 1
    skews = {(16, 2): (13, 3), (10, 4, 0.4, 2): (2, 2, 4, 2), (16, 3, 0.8, 2): (2, 1, 13), (8, 4, 0.8): (5, 1, 1, 1)}
    assert {given: skewed(*given).sizes for given in (*skews, (4, 1))} == {**skews, (4, 1): (4,)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: skewed(8, 2, 1.0), "share=1.0 is not between 0 and 1"),
        (lambda: skewed(8, 2, 0.5, 2), "rank=2 is not one of the 2 ranks: use 0 to 1"),
        (lambda: of_sizes(8, 2, [3, 4]), r"sizes=\[3, 4\] add up to 7: they must add up to 8 layers"),
        (lambda: of_sizes(8, 2, [8]), r"sizes=\[8\] has length 1 for 2 stages: give one size per stage"),
        (lambda: Partition(()), "every stage needs at least 1 layer"),
    ],
)
def test_refusals(make, message):
    """`config/bad_input.txt` has the others."""
    with pytest.raises(ValueError, match=message):
        make()
