"""Balanced partitions: never worse in the simulator than the uniform one, within memory, for ranks of any speed."""

import random
from math import comb

import pytest
from layer_prices import LayerPrices, of_layers

from microp.job import Workload
from microp.planner import NominalPrices, Task
from microp.schedule import balanced, builders, uniform
from microp.settings import NEVER, Checkpointing, DeviceSettings, EmulatedSettings
from microp.simulator import LayerMemory, LayerTimes, Ranks, Size
from microp.system import GIB

UNITS = NominalPrices(DeviceSettings("cpu", 1))


def task_of(schedule, prices, checkpointing=NEVER, rows=1, memory=None, cap=None) -> Task:
    workload = Workload(schedule, (), (rows,) * schedule.chunks, checkpointing)
    return Task(workload, prices, Ranks(workload, memory) if memory else None, cap)


@pytest.mark.parametrize("build", [builders.gpipe, builders.zb_h1, builders.interleaved, builders.zb_v])
def test_equal_layers_stay_so_if_no_other_partition_is_faster(build):
    """`test_search.py` compares with every partition."""
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
