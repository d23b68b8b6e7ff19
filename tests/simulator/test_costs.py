"""What an action costs, what a hop costs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import nan

import pytest
from costs_helper import equal

from microp.schedule import Action
from microp.schedule.builders import naive
from microp.simulator import Costs, for_stages, simulate
from microp.simulator.costs import ratio

EXAMPLE = Costs(
    forward=(1, 2),
    backward=(10, 20),
    weight=(100, 200),
    recompute=(1000, 2000),
    spared=(3,),
)


def test_what_an_action_takes():
    def whole(text: str) -> int:
        return EXAMPLE.of(Action.parse(text), split=False)

    def split(text: str) -> int:
        return EXAMPLE.of(Action.parse(text), split=True)

    assert (whole("1F0"), split("1F0")) == (2, 2)
    assert (whole("1B0"), split("1B0")) == (2220, 2020)
    assert (whole("1B3"), split("1B3")) == (220, 20)
    assert split("1W0") == split("1W3") == 200
    assert [EXAMPLE.recomputation(Action.parse(text)) for text in ("0B0", "1B0", "1B3")] == [1000, 2000, 0]


def test_a_full_backward_may_have_its_own_time():
    costs = replace(EXAMPLE, full=(7, 8))
    assert [costs.of(Action.parse(text), split=False) for text in ("0B3", "1B3", "1B0")] == [7, 8, 2008]
    assert [costs.of(Action.parse(text), split=True) for text in ("0B3", "1B3", "1B0", "1W0")] == [10, 20, 2020, 200]
    assert [each.full_backward(1) for each in (EXAMPLE, costs)] == [220, 8]
    assert Costs((1,), (1,), (1,), 5) == Costs((1,), (1,), (1,), latency=5)  # `full` is given by its name alone


def test_a_hop_is_latency_and_size_over_bandwidth():
    costs = for_stages(3, forward=1, backward=1, latency=2, boundary=(8, 9, 6), bandwidth=3)
    assert [costs.hop(stage) for stage in (1, 2)] == [5, 4]
    assert type(costs.hop(1)) is int
    assert for_stages(2, forward=1, backward=1, boundary=5, bandwidth=Fraction(1, 2)).hop(1) == 10
    assert for_stages(2, forward=1, backward=1, boundary=5, bandwidth=0.5).hop(1) == 10.0
    assert for_stages(2, forward=1, backward=1, boundary=5, latency=7).hop(1) == 7


def test_a_hop_may_have_its_own_latency():
    costs = for_stages(3, forward=1, backward=1, latency=(0, 2, 9), boundary=(8, 9, 6), bandwidth=3)
    assert [costs.hop(stage) for stage in (1, 2)] == [5, 11]
    starts = {str(span.action): span.start for span in simulate(naive(3, 1), replace(costs, boundary=()))}
    assert starts == {"0F0": 0, "1F0": 3, "2F0": 13, "2B0": 14, "1B0": 24, "0B0": 27}


def test_a_ratio_is_exact_where_it_can_be():
    assert ratio(6, 4) == Fraction(3, 2)
    assert type(ratio(6, 3)) is int
    assert ratio(Fraction(1, 3), 2) == Fraction(1, 6)
    assert type(ratio(6, 3.0)) is float


def test_one_value_for_all_stages():
    assert for_stages(3, forward=1, backward=(2, 3, 4), weight=None, latency=5) == Costs(
        (1, 1, 1), (2, 3, 4), latency=5
    )
    assert equal(2, 1, 2, 3) == Costs((1, 1), (2, 2), latency=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"forward": [1, 2, 3]}, "costs.forward has 3 values for 4 stages: give one per stage, or one for all"),
        ({"boundary": (1,)}, "costs.boundary has 1 value for 4 stages: give one per stage, or one for all"),
        ({"weight": (1, 2, -3, 4)}, "costs.weight\\[2\\]=-3 is negative: give a number from 0 up"),
        ({"backward": -1}, "costs.backward\\[0\\]=-1 is negative"),
        ({"forward": nan}, "costs.forward\\[0\\]=nan is not a number"),
        ({"latency": -1}, "costs.latency=-1 is negative"),
        ({"latency": (0, 1, -2, 3)}, "costs.latency\\[2\\]=-2 is negative"),
        ({"latency": (0, 1)}, "costs.latency has 2 values for 4 stages: give one per stage, or one for all"),
        ({"full": (1, 2)}, "costs.full has 2 values for 4 stages: give one per stage, or one for all"),
        ({"bandwidth": 0}, "costs.bandwidth=0: give bytes per unit of time, above 0"),
        ({"spared": (-1,)}, "costs.spared has -1: microbatches go from 0 to chunks - 1"),
        ({"forward": None}, "costs.forward is missing: give one value per stage, or one for all"),
    ],
)
def test_refusals_name_the_key(given, message):
    with pytest.raises(ValueError, match=message):
        for_stages(4, **{"forward": 1, "backward": 2, **given})


def test_lists_of_different_lengths():
    with pytest.raises(ValueError, match=r"costs.weight has 3 values for 2 stages"):
        Costs((1, 1), (2, 2), (1, 1, 1))
