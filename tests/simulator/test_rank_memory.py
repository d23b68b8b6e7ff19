"""The memory of ranks from the order alone, by hand; `engine/test_slices_and_copies.py` measures it."""

import random

import pytest
from conftest import CHECKPOINTING

from microp.job import Workload
from microp.schedule import builders, spread
from microp.settings import HOLDS_NOTHING, NEVER, Holds
from microp.simulator import LayerMemory, Ranks, Size
from microp.simulator.rank_memory import GRADIENT, INPUT, SENT_GRADIENT, SENT_OUTPUT, held_counts

ORDERS = [builders.gpipe(3, 5), builders.one_f_one_b(4, 6), builders.zb_h2(3, 6), builders.interleaved(2, 5)]
ORDERS += [builders.breadth_first(2, 4, 3), builders.zb_v(3, 7), builders.dualpipe_v(2, 6)]


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
@pytest.mark.parametrize("schedule", ORDERS, ids=lambda each: each.name)
def test_parts_add_up_to_the_peaks(schedule, holds):
    chance = random.Random(schedule.name)
    for policy in CHECKPOINTING.values():
        layers = some_layers(chance, schedule.stages + 4)
        sizes = list(spread(len(layers), schedule.stages))
        chance.shuffle(sizes)
        ranks = Ranks(Workload(schedule, (), (7,) * schedule.chunks, policy, holds=holds), layers, batch=(30, 50))
        for rank, peak in enumerate(ranks.peaks(sizes)):
            assert sum(part.size for part in ranks.parts(sizes, rank)) == pytest.approx(peak)


def test_the_parts_name_the_microbatches_in_flight():
    layers = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30))] * 4
    workload = Workload(builders.one_f_one_b(4, 8), (), (10,) * 8, NEVER, holds=Holds(mailboxes=True))
    parts = Ranks(workload, layers).parts((1,) * 4, 0)
    found = {part.name: (part.size, part.number) for part in parts if part.size}
    assert found == {name: (size, 0) for name, size in {"weights": 1000, "gradients": 1000}.items()} | {
        **{"the optimizer's state": (2000, 0), "activations": (4000, 4), "in a backward": (100, 0)},
        "received tensors": (400, 0),
    }


def test_the_buckets_of_replicas_are_as_large_as_the_weights():
    layers = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30))] * 4
    alone, several = (
        Ranks(Workload(builders.gpipe(2, 2), (), (10, 10), NEVER, holds=Holds(buckets=has)), layers)
        for has in (False, True)
    )
    added = [more - less for less, more in zip(alone.peaks((1, 3)), several.peaks((1, 3)), strict=True)]
    assert added == [1000, 3000]
    parts = {part.name: part.size for part in several.parts((1, 3), 1)}
    assert (parts["buckets of gradients"], parts["the optimizer's state"]) == (3000, 6000)
