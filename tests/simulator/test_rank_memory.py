"""The memory of ranks from the order alone: a bookkeeper with a dictionary, mailboxes by hand."""

import random

import numpy as np
import pytest
from conftest import CHECKPOINTING
from random_schedules import random_schedule

from microp.job import Workload
from microp.schedule import Action, Op, Schedule, builders, spread
from microp.settings import HOLDS_NOTHING, Holds
from microp.simulator import LayerMemory, Ranks, Size, StageBytes
from microp.simulator.rank_memory import GRADIENT, INPUT, OWN_SEND, SENT_GRADIENT, SENT_OUTPUT, held_counts

ORDERS = [builders.gpipe(3, 5), builders.one_f_one_b(4, 6), builders.zb_h2(3, 6), builders.interleaved(2, 5)]
ORDERS += [builders.breadth_first(2, 4, 3), builders.zb_v(3, 7), builders.dualpipe_v(2, 6)]
POLICIES = [*CHECKPOINTING.values()]


def activation_peak(schedule: Schedule, *memory: StageBytes, spared: tuple[int, ...] = ()) -> dict[int, float]:
    """Rank -> the most bytes of activations and gradients; of one `StageBytes`, every stage has it."""
    table = np.array(memory if len(memory) > 1 else memory * schedule.stages, float)
    every = held_counts(schedule, HOLDS_NOTHING, spared, [1] * schedule.chunks)
    return {
        rank: float((counts * table[list(schedule.stages_of(rank))]).sum(axis=(1, 2)).max())
        for rank, counts in enumerate(every)
    }


def bookkeeper(  # noqa: C901 - one action after the other
    schedule: Schedule, memory: list[StageBytes], spared: tuple[int, ...]
) -> dict[int, float]:
    """Peaks from what lies on a rank's shelf, by (stage, microbatch, what for)."""
    peaks = {}
    divides = any(action.op is Op.I for _, action in schedule)
    for rank, row in enumerate(schedule.ranks):
        shelf: dict[tuple[int, int, str], float] = {}
        peak = 0.0
        for op, stage, microbatch in row:
            own, again = memory[stage], microbatch not in spared
            before, after = memory[stage - 1], stage + 1
            has_input, has_gradient = stage > 0, after < schedule.stages
            is_near = has_input and schedule.placement[stage - 1] == rank
            goes_near = has_gradient and schedule.placement[after] == rank
            # 1. what the action needs
            if op is Op.F:
                shelf[stage, microbatch, "B"] = own.kept if again else own.whole
                extra = own.in_forward + (own.input if has_input and not is_near else 0)
            elif op is Op.W:
                extra = own.in_weight
            else:
                extra = own.in_backward if op is Op.I or not divides else own.in_full
                extra += (own.rebuilt if again else 0) + (own.gradient if has_gradient and not goes_near else 0)
            peak = max(peak, sum(shelf.values()) + extra)
            # 2. what it leaves, and what is free
            if op is Op.F:
                if has_input:
                    shelf.pop((stage - 1, microbatch, "output"), None)
                    twice = before.both if is_near and not again else 0
                    shelf[stage, microbatch, "input"] = (own.input_kept if again else own.input_whole) - twice
                if goes_near:
                    shelf[stage, microbatch, "output"] = own.sent_output if again else own.sent_whole
            elif op is Op.W:
                del shelf[stage, microbatch, "W"]
                shelf.pop((stage, microbatch, "twice"), None)
            else:
                del shelf[stage, microbatch, "B"]
                for place, what in ((stage, "input"), (stage, "gradient"), (after, "twice")):
                    shelf.pop((place, microbatch, what), None)
                if is_near:
                    shelf[stage - 1, microbatch, "gradient"] = before.gradient
                if op is Op.I and Action(Op.W, stage, microbatch) in row:
                    tensors = has_input * own.input_pending + has_gradient * own.gradient_pending
                    shelf[stage, microbatch, "W"] = own.pending + tensors
                    if is_near and not again:
                        shelf[stage, microbatch, "twice"] = -before.both_pending
            if op in (Op.B, Op.W):
                shelf[stage, 0, "gradients"] = own.gradients  # the same ones from then on
            peak = max(peak, sum(shelf.values()))
        peaks[rank] = peak
    return peaks


def test_any_schedule_any_footprint():
    chance = random.Random(7)
    for _ in range(80):
        schedule = random_schedule(chance)
        memory = [StageBytes(*(chance.randint(0, 99) for _ in range(OWN_SEND))) for _ in range(schedule.stages)]
        spared = tuple({chance.randrange(schedule.chunks) for _ in range(2)})
        assert activation_peak(schedule, *memory, spared=spared) == pytest.approx(bookkeeper(schedule, memory, spared))


def test_a_mailbox_stays_from_its_first_tensor_on():
    """GPipe on the first of two ranks: a gradient comes for each microbatch, and none can use another's mailbox."""
    first, second = held_counts(builders.gpipe(2, 3), Holds(mailboxes=True), (), [1] * 3)
    after = slice(0, 6)  # each action; the moments during them follow
    assert first[after, 0, GRADIENT].tolist() == [0, 0, 0, 1, 2, 3]
    assert second[after, 0, INPUT].tolist() == [1, 2, 3, 3, 3, 3]
    assert first[..., INPUT].max() == second[..., GRADIENT].max() == 0
    # 1F1B: the last rank's inputs alternate between two mailboxes
    _, last = held_counts(builders.one_f_one_b(2, 4), Holds(mailboxes=True), (), [1] * 4)
    assert last[:8, 0, INPUT].tolist() == [1, 1, 2, 2, 2, 2, 2, 2]
    # microbatches count by their rows
    found = next(held_counts(builders.gpipe(1, 4), Holds(mailboxes=True), (), [3, 3, 2, 2]))[:4, 0, 0]
    assert found.tolist() == pytest.approx([1.2, 2.4, 3.2, 4.0])


def test_what_is_sent_is_kept_until_its_use_is_known():
    first, second = held_counts(builders.gpipe(2, 3), Holds(messages=True), (), [1] * 3)
    assert first[:6, 0, SENT_OUTPUT].tolist() == [1, 2, 3, 0, 0, 0]  # the first gradient says that all were used
    assert second[:6, 0, SENT_GRADIENT].tolist() == [0, 0, 0, 1, 2, 3]


def test_a_tensor_to_come_has_its_place_from_when_its_receive_is_posted():
    """Two receives are posted ahead; a mailbox keeps its place afterwards, other memory is free again."""
    first, _ = held_counts(builders.gpipe(2, 4), Holds(messages=True), (), [1] * 4)
    assert first[:8, 0, GRADIENT].tolist() == [2, 2, 2, 2, 2, 2, 1, 0]
    assert first[8:, 0, GRADIENT].tolist() == [2, 2, 2, 2, 3, 3, 2, 1]  # during each action, with its own
    first, _ = held_counts(builders.gpipe(2, 4), Holds(mailboxes=True, messages=True), (), [1] * 4)
    assert first[:8, 0, GRADIENT].tolist() == [2, 2, 2, 2, 3, 4, 4, 4]


def some_layers(chance: random.Random, count: int) -> list[LayerMemory]:
    sizes = [[Size(chance.randint(0, 9), chance.randint(0, 9)) for _ in range(9)] for _ in range(3)]
    for each in sizes:
        each[0] = Size(*(larger + 9 for larger in each[0]))  # it holds what is shared
    kinds = [LayerMemory(chance.randint(1, 99), *each) for each in sizes]
    return [kinds[0], *(kinds[1] for _ in range(count - 2)), kinds[2]]


@pytest.mark.parametrize("holds", [HOLDS_NOTHING, Holds(mailboxes=True), Holds(messages=True), Holds(True, True, True)])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each.name)
@pytest.mark.parametrize("schedule", ORDERS, ids=lambda each: each.name)
def test_parts_add_up_to_the_peaks(schedule, policy, holds):
    chance = random.Random(schedule.name + policy.name)
    for _ in range(5):
        layers = some_layers(chance, schedule.stages + 4)
        sizes = list(spread(len(layers), schedule.stages))
        chance.shuffle(sizes)
        ranks = Ranks(Workload(schedule, (), (7,) * schedule.chunks, policy, holds=holds), layers, batch=(30, 50))
        for rank, peak in enumerate(ranks.peaks(sizes)):
            assert sum(part.size for part in ranks.parts(sizes, rank)) == pytest.approx(peak)


def test_the_parts_name_the_microbatches_in_flight():
    layers = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30))] * 4
    workload = Workload(builders.one_f_one_b(4, 8), (), (10,) * 8, POLICIES[0], holds=Holds(mailboxes=True))
    parts = Ranks(workload, layers).parts((1,) * 4, 0)
    found = {part.name: (part.size, part.number) for part in parts if part.size}
    assert found == {name: (size, 0) for name, size in {"weights": 1000, "gradients": 1000}.items()} | {
        **{"the optimizer's state": (2000, 0), "activations": (4000, 4), "in a backward": (100, 0)},
        "received tensors": (400, 0),
    }


def test_the_buckets_of_replicas_are_as_large_as_the_weights():
    layers = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30))] * 4
    alone, several = (
        Ranks(Workload(builders.gpipe(2, 2), (), (10, 10), POLICIES[0], holds=Holds(buckets=has)), layers)
        for has in (False, True)
    )
    added = [more - less for less, more in zip(alone.peaks((1, 3)), several.peaks((1, 3)), strict=True)]
    assert added == [1000, 3000]
    parts = {part.name: part.size for part in several.parts((1, 3), 1)}
    assert (parts["buckets of gradients"], parts["the optimizer's state"]) == (3000, 6000)
