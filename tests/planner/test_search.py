"""The search leaves out nothing that is better; advice on memory: what fills a rank, and changes that do fit."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from layer_prices import LayerPrices, of_layers

from microp.planner import Choice, NominalPrices, Pricer, Space, Subject, advice, search, what_binds
from microp.planner.advice import changes
from microp.schedule import builders
from microp.settings import DeviceSettings, EmulatedSettings
from microp.simulator import LayerMemory, LayerTimes, Size

DEVICE = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.3, None, ["layer", "row"])
LAYER = LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30), pending=Size(0, 10))
LAYERS = [LAYER._replace(later=(LAYER,))] * 8
SPACE = Space(chunks=(2, 8), checkpointing=("never", "always"), replicas=(1, 2))


def some_pricer(prices=None, ranks: int = 4, rows: int = 32) -> Pricer:
    prices = NominalPrices(DEVICE) if prices is None else prices
    return Pricer(Subject(8, ranks, rows, prices, lambda split, slices, rows: LAYERS))


def all_sizes(layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, layers), stages - 1)
    return [tuple(end - begin for begin, end in pairwise((0, *each, layers))) for each in cuts]


@pytest.mark.parametrize("seed", range(12))
def test_of_a_small_space_no_plan_and_no_partition_is_better(seed):
    """Every choice of a random space is simulated with every partition, one by one."""
    chance = random.Random(seed)
    ranks, layers = chance.choice([2, 3, 4]), chance.randint(5, 8)
    times = [LayerTimes(*(chance.choice([1, 2, 4]) for _ in range(5))) for _ in range(layers)]
    device = replace(DEVICE, latency_ms=chance.choice([0.0, 1.0, 9.0]), reduce_ms=2.0)
    prices = chance.choice([NominalPrices(device), LayerPrices(times, latency=chance.choice([0, 3]))])
    pricer = Pricer(Subject(layers, ranks, 16, prices, lambda split, slices, rows: LAYERS[:layers]))
    names = ["gpipe", "1f1b", "zb_h1", "zb_v", "interleaved", "zb_interleaved", "breadth_first", "seq_1f1b"]
    names = [*chance.sample(names, 2), chance.choice(["dualpipe", "chimera"])]
    replicas = (1, 2) if isinstance(prices, NominalPrices) else (1,)
    space = Space(names, (2, 4, 8), ("never", "always"), replicas=replicas)
    cap = chance.choice([None, 0.9 * max(plan.peak for plan in search(pricer, space, None).front)])
    found = search(pricer, space, cap)
    every = []
    for choice in space.choices():
        if (schedule := pricer.schedule(choice)) is None:
            continue
        task, memory, plan = pricer.task(choice, schedule), pricer.ranks(choice, schedule), pricer.price(choice, cap)
        if choice.partition == "balanced":
            sizes = all_sizes(layers, schedule.depth)
            fitting = [each for each in sizes if not cap or max(memory.peaks(task.workload(each).layers)) <= cap]
            assert (plan is not None) == bool(fitting)
            assert plan is None or plan.step == pytest.approx(min(map(task.step, fitting)))
        every += [plan] if plan is not None and (cap is None or plan.peak <= cap) else []
    assert found.front[0].step == pytest.approx(min(plan.step for plan in every))
    for mine in found.front:
        assert cap is None or mine.peak <= cap
        better = [plan for plan in every if plan.step < mine.step * 0.999999 and plan.peak <= mine.peak * 1.000001]
        assert not better
    assert search(pricer, space, cap) == found


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
    far = some_pricer(of_layers([1] * 8, latency=50))
    assert what_binds(far, far.price(Choice("1f1b", 8)), None) == "hops"
    uneven = some_pricer(of_layers([1] * 7 + [99]))
    assert what_binds(uneven, uneven.price(Choice("1f1b", 16)), None) == "compute of rank 3"


def test_replicas_divide_the_ranks_and_the_rows():
    pricer = some_pricer(NominalPrices(DeviceSettings("cpu", 1)))
    assert len(pricer.schedule(Choice("gpipe", 4, replicas=2)).ranks) == 2
    assert pricer.schedule(Choice("gpipe", 4, replicas=3)) is None
    assert pricer.schedule(Choice("gpipe", 32, replicas=2)) is None
    one, two = (pricer.price(Choice("gpipe", 4, replicas=each)) for each in (1, 2))
    assert two.step < one.step
    assert two.peak > one.peak


def advised_pricer(ranks: int = 4) -> Pricer:
    return some_pricer(NominalPrices(replace(DEVICE, latency_ms=0.0, optimizer_ms=9.0)), ranks, 64)


def gpipe_now() -> tuple:
    pricer = advised_pricer()
    return pricer, pricer.add(Choice("gpipe", 8), builders.gpipe(4, 8), (2, 2, 2, 2))


def test_every_change_fits_and_is_priced():
    pricer, now = gpipe_now()
    found = changes(pricer, now, 0.7 * now.peak)
    assert 0 < len(found) <= 3
    assert [plan.step for _, plan in found] == sorted(plan.step for _, plan in found)
    for words, plan in found:
        assert plan.peak <= 0.7 * now.peak
        assert words in " ".join(plan.choice.words())
        assert plan.step == pricer.forecast(plan).step > pricer.price(plan.choice, 0.7 * now.peak).step  # the optimizer
    assert "schedule" in advice(pricer, now, 0.7 * now.peak)
    assert "step" in advice(pricer, now, 0.7 * now.peak)


def test_where_no_change_alone_is_enough_the_command_that_tries_several_is_named():
    pricer, now = gpipe_now()
    assert changes(pricer, now, 100) == []
    said = "use a smaller model or several changes together: COMMAND"
    assert advice(pricer, now, 100, plan="COMMAND") == said  # nor are more ranks, or fewer rows


def test_sizes_that_the_user_chose_are_kept_but_by_an_order_with_another_number_of_stages():
    pricer = advised_pricer()
    now = pricer.add(Choice("1f1b", 8, partition="given"), builders.one_f_one_b(4, 8), (5, 1, 1, 1))
    found = dict(changes(pricer, now, 0.9 * now.peak))
    assert found["partition=balanced"].sizes == (2, 2, 2, 2)
    if "chunks=16" in found:
        assert found["chunks=16"].sizes == (5, 1, 1, 1)
    moved = [(words, plan) for words, plan in found.items() if len(plan.sizes) == 8]
    assert moved
    for words, plan in moved:
        assert (plan.sizes, words) == ((1,) * 8, f"schedule={plan.choice.schedule} partition=uniform")


def test_an_order_with_fewer_stages_per_rank_than_now_is_advised_with_their_number():
    pricer = advised_pricer(2)
    four, two = ((("stages_per_rank", count),) for count in (4, 2))
    now = pricer.add(Choice("breadth_first", 4, knobs=four), builders.breadth_first(2, 4, 4), (1,) * 8)
    looped = [words for words, plan in changes(pricer, now, 0.99 * now.peak) if plan.choice.knobs == two]
    assert looped
    assert all(words.endswith(" schedule.stages_per_rank=2") for words in looped)


def test_groups_and_warm_up_are_searched_where_they_are_given():
    knobs = {"stages_per_rank": (2,), "group": (4, 6), "warmup": ("single",)}
    space = Space(("interleaved", "gis", "1f1b"), (8,), ("never",), ("uniform",), knobs)
    assert [" ".join(choice.words()[2:]) for choice in space.choices()] == [
        *(f"schedule.stages_per_rank=2 schedule.group={group} schedule.warmup=single" for group in (4, 6)),
        *(f"schedule.stages_per_rank=2 schedule.group={group}" for group in (4, 6)),
        "",
    ]
