"""Balanced partitions: never worse in the simulator than the uniform one, within memory, for ranks of any speed."""

from __future__ import annotations

import random

import pytest

from microp.planner import LayerPrices, NominalPrices, Ranks, Task
from microp.schedule import balanced, builders, uniform
from microp.settings import GIB, NEVER, Checkpointing, DeviceSettings, EmulatedSettings
from microp.simulator import LayerMemory, LayerTimes, Size

UNITS = NominalPrices(DeviceSettings("cpu", 1))
ORDERS = [
    builders.gpipe(4, 8),
    builders.one_f_one_b(4, 8),
    builders.zb_h1(4, 8),
    builders.interleaved(2, 8),
    builders.zb_v(2, 8),
    builders.interleaved(2, 8, 3),
]


def of_layers(times, device=None, **hops) -> LayerPrices:
    """Prices of layers whose backward takes twice their forward."""
    return LayerPrices("made up", [LayerTimes(t, t, t, 2 * t, t) for t in times], device=device, **hops)


@pytest.mark.parametrize("schedule", ORDERS, ids=lambda each: f"{each.name} {each.stages}")
def test_it_is_never_worse_than_the_uniform_partition_or_the_exact_cut(schedule):
    chance = random.Random(schedule.name)
    better = 0
    for _ in range(10):
        layers = chance.randint(schedule.stages, 14)
        times = [float(chance.choice([1, 1, 2, 5])) for _ in range(layers)]
        task = Task(schedule, (1,) * 8, of_layers(times, latency=chance.choice([0, 0.5])))
        steps = [
            task.step(sizes.sizes)
            for sizes in (
                balanced(layers, schedule.stages, task),
                balanced(layers, schedule.stages, task, refine=False),
                uniform(layers, schedule.stages),
            )
        ]
        assert steps[0] == pytest.approx(min(steps))
        better += steps[0] < steps[2] * 0.99
    assert better > 2


def test_equal_layers_stay_uniform():
    for schedule in ORDERS:
        assert balanced(12, schedule.stages, Task(schedule, (1,) * 8, UNITS)) == uniform(12, schedule.stages)


def test_a_heavy_head_gets_a_stage_with_fewer_layers():
    task = Task(builders.one_f_one_b(4, 8), (1,) * 8, of_layers([1.0] * 15 + [4.0]))
    assert balanced(16, 4, task).sizes == (5, 5, 5, 1)


def test_a_slow_rank_gets_fewer_layers_and_an_emulated_stage_of_any_size_is_the_same():
    per_layer = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.0, None, ["layer"], speed=[1, 1, 0.5, 1])
    task = Task(builders.gpipe(4, 8), (1,) * 8, NominalPrices(per_layer))
    assert balanced(14, 4, task).sizes == (4, 4, 2, 4)
    per_stage = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.0, None, [])
    assert balanced(14, 4, Task(builders.gpipe(4, 8), (1,) * 8, NominalPrices(per_stage))) == uniform(14, 4)


MEMORY = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30), pending=Size(0, 10))] * 12


def test_the_first_stage_of_1f1b_gets_fewer_layers_if_memory_is_short():
    """It keeps four microbatches of 1000 bytes per layer, the last stage one."""
    schedule = builders.one_f_one_b(4, 8)
    free = Task(schedule, (10,) * 8, UNITS, memory=MEMORY, cap=1e9)
    assert balanced(12, 4, free).sizes == (3, 3, 3, 3)
    tight = Task(schedule, (10,) * 8, UNITS, memory=MEMORY, cap=22_000)
    sizes = balanced(12, 4, tight).sizes
    assert sizes == (2, 3, 3, 4)
    assert (
        max(Ranks(schedule, MEMORY, [10] * schedule.chunks, NEVER).peaks(sizes))
        <= 22_000
        < max(Ranks(schedule, MEMORY, [10] * schedule.chunks, NEVER).peaks((3, 3, 3, 3)))
    )


def test_memory_that_no_partition_fits_into_is_refused():
    task = Task(builders.one_f_one_b(4, 8), (10,) * 8, UNITS, memory=MEMORY, cap=0.00001 * GIB)
    with pytest.raises(ValueError, match=r"device.memory_gib=1e-05 is too little for any partition of 12 layers"):
        balanced(12, 4, task)


def test_a_cut_that_is_not_proven_is_told(monkeypatch):
    monkeypatch.setattr("microp.planner.search_cuts.MOST_VISITS", 2)
    schedule = builders.interleaved(2, 4, 3)
    task = Task(schedule, (1,) * 4, of_layers([(each + 1) ** 0.5 for each in range(30)]))
    balanced(30, 6, task)
    assert "is not proven to be the least possible" in task.notes[0]


def test_recomputation_counts():
    """A layer that takes long to recompute weighs more only if it is recomputed."""
    layers = [LayerTimes(1, 1, 1, 2, 1)] * 3 + [LayerTimes(1, 1, 1, 2, 7)]
    schedule = builders.gpipe(2, 4)
    kept = Task(schedule, (1,) * 4, LayerPrices("made up", layers))
    again = Task(schedule, (1,) * 4, LayerPrices("made up", layers), Checkpointing("always", 1, False))
    assert balanced(4, 2, kept).sizes == (2, 2)
    assert balanced(4, 2, again).sizes == (3, 1)
