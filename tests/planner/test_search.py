"""The search leaves out nothing that is better, and its lower bounds are none too large."""

from __future__ import annotations

import pytest

from microp.planner import (
    ORDERS,
    Choice,
    LayerPrices,
    NominalPrices,
    Pricer,
    Space,
    Subject,
    front_of,
    search,
    shortest,
    what_binds,
)
from microp.settings import DeviceSettings, EmulatedSettings
from microp.simulator import LayerMemory, LayerTimes, Size

DEVICE = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.3, None, ["layer", "row"])
LAYERS = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30), pending=Size(0, 10))] * 8
UNEQUAL = LayerPrices("made up", [LayerTimes(t, t, t, 2 * t, t) for t in (1, 1, 2, 1, 3, 1, 1, 9)], latency=0.5)
SPACE = Space(chunks=(2, 4, 8), checkpointing=("never", "always", "except_last"), replicas=(1, 2))


def some_pricer(prices=None) -> Pricer:
    prices = NominalPrices(DEVICE) if prices is None else prices
    return Pricer(Subject(8, 4, 32, prices, lambda split: LAYERS, lambda rows: 0))


@pytest.mark.parametrize("prices", [NominalPrices(DEVICE), UNEQUAL], ids=["equal", "unequal"])
def test_the_front_is_that_of_all_choices(prices):
    pricer = some_pricer(prices)
    found = search(pricer, SPACE, None)
    every = [priced for choice in SPACE.choices() if (priced := pricer.price(choice)) is not None]
    for plan in front_of(every):
        assert any(mine.step <= plan.step * 1.000001 and mine.peak <= plan.peak * 1.000001 for mine in found.front)
    assert found.candidates == len(every)
    assert found.simulated < len(every) / 2
    assert search(some_pricer(prices), SPACE, None) == found


@pytest.mark.parametrize("name", ORDERS)
def test_no_step_is_shorter_than_its_bound(name):
    pricer = some_pricer(UNEQUAL)
    for choice in Space((name,), (2, 3, 4, 8), SPACE.checkpointing).choices():
        schedule = pricer.schedule(choice)
        if schedule is not None and (priced := pricer.price(choice)) is not None:
            bound = shortest(pricer.task(choice, schedule), priced.sizes)
            assert 0.4 * priced.step < bound <= priced.step * 1.000001


def test_every_plan_keeps_to_the_cap_and_what_does_not_fit_is_told():
    free = search(some_pricer(), SPACE, None)
    cap = (free.front[0].peak + free.front[-1].peak) / 2
    found = search(some_pricer(), SPACE, cap)
    assert found.front
    assert all(plan.peak <= cap for plan in found.front)
    assert found.too_large > 0
    assert found.over[1].step <= found.front[0].step
    nothing = search(some_pricer(), SPACE, 10)
    assert nothing.front == []
    assert nothing.over[0].peak == min(plan.peak for plan in free.front)


def test_what_binds():
    pricer = some_pricer()
    naive = pricer.price(Choice("gpipe", 2))
    assert what_binds(pricer, naive, None) == "the bubble"
    assert what_binds(pricer, naive, naive.peak).startswith("memory of rank 0, ")
    far = some_pricer(LayerPrices("made up", [LayerTimes(1, 1, 1, 2, 1)] * 8, latency=50))
    assert what_binds(far, far.price(Choice("1f1b", 8)), None) == "hops"
    uneven = some_pricer(LayerPrices("made up", [LayerTimes(1, 1, 1, 2, 1)] * 7 + [LayerTimes(99, 99, 99, 198, 99)]))
    assert what_binds(uneven, uneven.price(Choice("1f1b", 16)), None) == "compute of rank 3"


def test_replicas_divide_the_ranks_and_the_rows():
    pricer = some_pricer(NominalPrices(DeviceSettings("cpu", 1)))
    assert len(pricer.schedule(Choice("gpipe", 4, replicas=2)).ranks) == 2
    assert pricer.schedule(Choice("gpipe", 4, replicas=3)) is None
    assert pricer.schedule(Choice("gpipe", 32, replicas=2)) is None
    one, two = (pricer.price(Choice("gpipe", 4, replicas=each)) for each in (1, 2))
    assert two.step < one.step
    assert two.peak > one.peak
