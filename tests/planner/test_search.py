"""Partitions and plans: the search leaves out nothing that is better; advice on memory names changes that do fit.

A balanced partition is within memory, and for ranks of any speed.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import comb

import pytest

from microp.job import Workload
from microp.planner import Choice, NominalPrices, Pricer, Prices, Space, Subject, Task, advice, search, what_binds
from microp.planner.advice import changes
from microp.schedule import balanced, builders, uniform
from microp.settings import NEVER, Checkpointing, DeviceSettings, EmulatedSettings
from microp.simulator import Costs, LayerMemory, LayerTimes, Ranks, Size, costs_of, slowed
from microp.system import GIB


class LayerPrices(Prices):
    """Times of each layer for a microbatch, added up over a stage."""

    is_known, source = True, "made up"

    def __init__(self, layers: Sequence[LayerTimes], device: DeviceSettings | None = None, latency: float = 0) -> None:
        self._layers, self._device, self._latency = layers, device, latency
        self.kinds = [layers.index(layer) for layer in layers]

    def costs(self, workload: Workload) -> Costs:
        schedule, layers = workload.schedule, [*self._layers] * workload.schedule.copies
        costs = costs_of(layers, workload.layers, schedule, workload.checkpointing, latency=self._latency)
        return costs if self._device is None else slowed(costs, self._device, schedule)

    def weights(self, workload: Workload) -> Sequence[float]:
        return [layer.forward + layer.full for layer in self._layers]


def of_layers(times: Sequence[float], device: DeviceSettings | None = None, latency: float = 0) -> LayerPrices:
    return LayerPrices([LayerTimes(t, t, t, 2 * t, t) for t in times], device, latency)


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


UNITS = NominalPrices(DeviceSettings("cpu", 1))


def task_of(schedule, prices, checkpointing=NEVER, rows=1, memory=None, cap=None) -> Task:
    workload = Workload(schedule, (), (rows,) * schedule.chunks, checkpointing)
    return Task(workload, prices, Ranks(workload, memory) if memory else None, cap)


@pytest.mark.parametrize("build", [builders.gpipe, builders.zb_h1, builders.interleaved, builders.zb_v])
def test_equal_layers_stay_so_if_no_other_partition_is_faster(build):
    """`test_of_a_small_space...` compares with every partition."""
    task = task_of(schedule := build(2, 8), UNITS)
    found, even = balanced(12, schedule.stages, task), uniform(12, schedule.stages)
    assert found == even or (task.step(found.sizes) < task.step(even.sizes) and schedule.stages > len(schedule.ranks))


LOOPED = {
    "interleaved": lambda ranks, chunks: builders.interleaved(ranks, chunks, 2),
    "three per rank": lambda ranks, chunks: builders.interleaved(ranks, chunks, 3),
    "breadth_first": lambda ranks, chunks: builders.breadth_first(ranks, chunks, 3),
    "zb_interleaved": builders.zb_interleaved,
    "zb_v": builders.zb_v,
}


@pytest.mark.parametrize("name", LOOPED)
def test_moves_of_layers_come_within_a_hundredth_of_all_partitions(name, monkeypatch):
    """Of more partitions than are simulated at once, the search only sees what its moves lead to."""
    chance = random.Random(name)
    for _ in range(6):
        ranks = chance.choice([2, 3, 4])
        schedule = LOOPED[name](ranks, ranks * chance.choice([1, 2]))
        layers = schedule.stages + 1
        while comb(layers, schedule.stages - 1) < 3000:
            layers += 1
        times = [chance.choice([chance.choice([1, 2, 5]), chance.uniform(1, 3)]) for _ in range(layers)]
        task = task_of(schedule, of_layers(times, latency=chance.choice([0, 0.5, 2])))
        with monkeypatch.context() as few:
            few.setattr("microp.planner.balance.MOST", 500)
            step = task.step(balanced(layers, schedule.stages, task).sizes)
        assert step <= 1.01 * task.step(balanced(layers, schedule.stages, task).sizes)


def test_a_slow_rank_gets_fewer_layers_and_an_emulated_stage_of_any_size_is_the_same():
    per_layer = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.0, None, ["layer"], speed=[1, 1, 0.5, 1])
    task = task_of(builders.gpipe(4, 8), NominalPrices(per_layer))
    assert balanced(14, 4, task).sizes == (4, 4, 2, 4)
    task = task_of(builders.one_f_one_b(4, 8), of_layers([1.0] * 15 + [4.0]))  # a heavy head
    assert balanced(16, 4, task).sizes == (5, 5, 5, 1)
    task = task_of(builders.gpipe(16, 8), of_layers([0.0] * 60 + [1.0] * 4))  # most layers take no time at all
    assert balanced(64, 16, task).sizes[-3:] == (1, 1, 1)
    per_stage = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.0, None, [])
    assert balanced(14, 4, task_of(builders.gpipe(4, 8), NominalPrices(per_stage))) == uniform(14, 4)


MEMORY = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30), pending=Size(0, 10))] * 12


def test_the_first_stage_of_1f1b_gets_fewer_layers_if_memory_is_short():
    """It keeps four microbatches of 1000 bytes per layer, the last stage one."""
    schedule = builders.one_f_one_b(4, 8)
    free = task_of(schedule, UNITS, rows=10, memory=MEMORY, cap=1e9)
    assert balanced(12, 4, free).sizes == (3, 3, 3, 3)
    tight = task_of(schedule, UNITS, rows=10, memory=MEMORY, cap=22_000)
    sizes = balanced(12, 4, tight).sizes
    assert sizes == (2, 3, 3, 4)
    assert max(tight.ranks.peaks(sizes)) <= 22_000 < max(tight.ranks.peaks((3, 3, 3, 3)))
    nothing = task_of(schedule, UNITS, rows=10, memory=MEMORY, cap=0.00001 * GIB)
    assert balanced(12, 4, nothing).sizes == (3, 3, 3, 3)  # a run of it is refused with what would fit


def test_recomputation_counts():
    layers = [LayerTimes(1, 1, 1, 2, 1)] * 3 + [LayerTimes(1, 1, 1, 2, 7)]
    schedule = builders.gpipe(2, 4)
    kept = task_of(schedule, LayerPrices(layers))
    again = task_of(schedule, LayerPrices(layers), Checkpointing("always", 1, False))
    assert balanced(4, 2, kept).sizes == (2, 2)
    assert balanced(4, 2, again).sizes == (3, 1)


@pytest.mark.parametrize("build", [builders.gpipe, builders.one_f_one_b], ids=lambda build: build.__name__)
def test_of_many_layers_on_many_ranks_of_any_speed_the_longest_stage_is_about_as_short_as_it_can_be(build):
    """Moves of layers alone do not come near: the search begins from a level partition."""
    chance, ranks, layers = random.Random(build.__name__), 16, 96
    for times in ([chance.uniform(1, 3) for _ in range(layers)], [1 + 3 * at / layers for at in range(layers)]):
        speeds = [chance.choice([1, 1, 1, 0.5]) for _ in range(ranks)]
        prices = of_layers(times, DeviceSettings("cpu", 1, speed=speeds))
        sizes = balanced(layers, ranks, task := task_of(build(ranks, 64), prices)).sizes
        costs = prices.costs(task.workload(sizes))
        assert max(map(sum, zip(costs.forward, costs.backward, strict=True))) < 1.15 * 3 * sum(times) / sum(speeds)
