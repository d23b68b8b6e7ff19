"""What an action costs, what a hop costs, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from math import nan

import pytest

from microp.costs import Costs, equal, for_stages, measured, ratio
from microp.schedule import Action
from microp.schedules import one_f_one_b
from microp.simulate import simulate

EXAMPLE = Costs(
    forward=(1, 2),
    backward=(10, 20),
    weight=(100, 200),
    recompute=(1000, 2000),
    ahead=(0, 500),
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
    assert [EXAMPLE.lead(Action.parse(text)) for text in ("1F0", "0B0", "1B0", "1B3", "1W0")] == [0, 0, 500, 0, 0]


def test_a_hop_is_latency_and_size_over_bandwidth():
    costs = for_stages(3, forward=1, backward=1, latency=2, boundary=(8, 9, 6), bandwidth=3)
    assert [costs.hop(stage) for stage in (1, 2)] == [5, 4]
    assert type(costs.hop(1)) is int
    assert for_stages(2, forward=1, backward=1, boundary=5, bandwidth=Fraction(1, 2)).hop(1) == 10
    assert for_stages(2, forward=1, backward=1, boundary=5, bandwidth=0.5).hop(1) == 10.0
    assert for_stages(2, forward=1, backward=1, boundary=5, latency=7).hop(1) == 7


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
        ({"forward": [1, 2, 3]}, "costs.forward has 3 values for 4 stages: give one a stage, or one for all"),
        ({"boundary": (1,)}, "costs.boundary has 1 value for 4 stages: give one a stage, or one for all"),
        ({"weight": (1, 2, -3, 4)}, "costs.weight\\[2\\]=-3 is negative: give a number from 0 up"),
        ({"backward": -1}, "costs.backward\\[0\\]=-1 is negative"),
        ({"forward": nan}, "costs.forward\\[0\\]=nan is not a number"),
        ({"latency": -1}, "costs.latency=-1 is negative"),
        ({"bandwidth": 0}, "costs.bandwidth=0: give bytes per unit of time, above 0"),
        ({"spared": (-1,)}, "costs.spared has -1: microbatches go from 0 to chunks - 1"),
        (
            {"recompute": 2, "ahead": 3},
            "costs.ahead\\[0\\]=3 is more than costs.recompute\\[0\\]=2: it is a part of it",
        ),
        ({"forward": None}, "costs.forward is missing: give one value a stage, or one for all"),
    ],
)
def test_refusals_name_the_key(given, message):
    with pytest.raises(ValueError, match=message):
        for_stages(4, **{"forward": 1, "backward": 2, **given})


def test_lists_of_different_lengths():
    with pytest.raises(ValueError, match=r"costs.weight has 3 values for 2 stages"):
        Costs((1, 1), (2, 2), (1, 1, 1))


def test_costs_are_found_again_in_the_spans_they_made():
    schedule = one_f_one_b(3, 6)
    costs = Costs((5, 6, 7), (11, 12, 13), (0, 0, 0), latency=4)
    assert measured(schedule, simulate(schedule, costs)) == costs
