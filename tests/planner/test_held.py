"""The memory of ranks from the order alone equals that of simulated spans."""

from __future__ import annotations

import random

import pytest

from microp.planner import Ranks
from microp.schedule import builders, spread
from microp.settings import Checkpointing
from microp.simulator import Costs, LayerMemory, Size, activation_peak, compose_memory, simulate

STATE = 3  # the weights and Adam's two moments

ORDERS = [
    builders.gpipe(3, 5),
    builders.one_f_one_b(4, 6),
    builders.zb_h2(3, 6),
    builders.interleaved(2, 5),
    builders.breadth_first(2, 4, 3),
    builders.zb_v(3, 7),
    builders.dualpipe_v(2, 6),
]
POLICIES = [
    Checkpointing("never", 0, False),
    Checkpointing("always", 1, False),
    Checkpointing("except_last", 1, True),
    Checkpointing("segments", 2, False),
]


def some_layers(chance: random.Random, count: int) -> list[LayerMemory]:
    sizes = [[Size(chance.randint(0, 9), chance.randint(0, 9)) for _ in range(6)] for _ in range(3)]
    for each in sizes:
        each[0] = Size(*(larger + 9 for larger in each[0]))  # it holds what is shared
    kinds = [LayerMemory(chance.randint(1, 99), *each) for each in sizes]
    return [kinds[0], *(kinds[1] for _ in range(count - 2)), kinds[2]]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each.name)
@pytest.mark.parametrize("schedule", ORDERS, ids=lambda each: each.name)
def test_the_peaks_are_those_of_simulated_spans(schedule, policy):
    chance = random.Random(schedule.name + policy.name)
    ends = {schedule.placement[0], schedule.placement[schedule.stages - 1]}
    for _ in range(5):
        costs = Costs(*([chance.randint(1, 5) for _ in range(schedule.stages)] for _ in range(3)))
        spans = simulate(schedule, costs)
        layers = some_layers(chance, schedule.stages + 4)
        sizes = list(spread(len(layers), schedule.stages))
        chance.shuffle(sizes)
        memory = compose_memory(layers, sizes, 7, policy, schedule.chunks)
        held = activation_peak(spans, memory)
        ranks = Ranks(schedule, layers, 7, policy, batch=50)
        for rank, peak in enumerate(ranks.peaks(sizes)):
            weights = sum(memory.gradients[stage] for stage in schedule.stages_of(rank))
            assert peak == pytest.approx(STATE * weights + held[rank] + 50 * (rank in ends))
            assert sum(part.size for part in ranks.parts(sizes, rank)) == pytest.approx(peak)
        together = [0.0] * len(schedule.ranks)
        first = 0
        for stage, size in enumerate(sizes):
            rank = schedule.placement[stage]
            together[rank] = together[rank] + ranks.held()[stage][first, first + size]
            first += size
        for rank, peak in enumerate(ranks.peaks(sizes)):
            assert together[rank].max() + ranks.batch[rank] == pytest.approx(peak)


def test_the_parts_name_the_microbatches_in_flight():
    layers = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30))] * 4
    parts = Ranks(builders.one_f_one_b(4, 8), layers, 10, POLICIES[0]).parts((1, 1, 1, 1), 0)
    found = {part.name: (part.size, part.number) for part in parts if part.size}
    assert found == {
        "weights": (1000, 0),
        "gradients": (1000, 0),
        "the optimizer's state": (2000, 0),
        "activations": (4000, 4),
        "in a backward": (300, 0),
    }
