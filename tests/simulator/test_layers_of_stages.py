"""Stages from layers: memory and times."""

from __future__ import annotations

import pytest

from microp.schedule.builders import gpipe, zb_h1
from microp.settings import NEVER, Checkpointing, Holds
from microp.simulator import LayerMemory, LayerTimes, Size, costs_of, stage_bytes, weight_bytes

LAYER = LayerMemory(
    weights=100,
    activation=Size(per_row=30),  # its input, something inside, its output
    boundary=Size(per_row=10),
    shared=Size(per_row=10),
    in_backward=Size(40, 5),
)


def test_a_tensor_that_two_layers_keep_counts_once():
    memory = stage_bytes([LAYER] * 3, 2, NEVER)
    assert memory.kept == memory.whole == 2 * (30 + 20 + 20)
    assert memory.in_backward == 40 + 2 * 5  # the last layer's: after it, more is free than is needed
    assert (memory.rebuilt, memory.gradients) == (0, 300)
    assert weight_bytes([LAYER] * 5, (2, 3)) == [200, 300]


def test_small_gradients_wait_for_the_end_of_a_stage_s_w():
    small = LAYER._replace(in_weight=Size(2, 1), products=Size(5))
    large = LAYER._replace(in_weight=Size(50, 1))
    assert stage_bytes([small] * 3, 2, NEVER).in_weight == 3 * 5 + 2 + 2
    assert stage_bytes([small, large], 2, NEVER).in_weight == 5 + 50 + 2


def test_recomputed_segments_keep_their_inputs():
    memory, segment = stage_bytes([LAYER] * 4, 2, Checkpointing("segments", 2, False)), 2 * (30 + 20)
    assert memory.kept == 2 * 2 * 10
    assert memory.rebuilt + memory.in_backward == segment - 2 * 10 + 40 + 2 * 5


def test_what_some_backwards_of_a_stage_need_in_addition():
    """Two layers that keep 6 each, of which they share 2; a backward needs 9 more, and the last layer's frees 4."""
    layers = [LayerMemory(5, Size(6), Size(2), Size(2), in_backward=Size(9), in_weight=Size(6), products=Size(1))] * 2
    alone = stage_bytes(layers, 1, NEVER)
    assert alone.in_backward == 9  # then 9 - 4
    assert (alone.own_send, alone.first_backward, alone.first_weight) == (0, 1, 4)
    sending = stage_bytes([layers[0], layers[1]._replace(shared=Size(6))], 1, NEVER, 6, Holds(messages=True))
    assert (sending.own_send, sending.first_backward) == (2, 5 - 4 + 6)  # 9 - 4 + 6, then the weights' 5


def test_a_received_gradient_stays_in_its_mailbox_while_other_segments_run():
    layers = [LayerMemory(5, Size(6), Size(2), Size(2), in_backward=Size(9))] * 2
    policy = Checkpointing("segments", 2, False)
    freed, stays = (stage_bytes(layers, 1, policy, 3, Holds(mailboxes=each)) for each in (False, True))
    rebuilt = 6 - 2  # a segment's activations less its input
    assert freed.rebuilt + freed.in_backward == rebuilt + 9
    assert stays.in_backward == freed.in_backward + 3 - 2  # the last segment's input is free


def test_stages_take_the_times_of_their_layers():
    layers = [LayerTimes(2, 3, 1, 3.5, 2)] * 3 + [LayerTimes(5, 5, 5, 9, 5)]
    fixed = LayerTimes(0.5, 0, 0, 0.5, 0)
    costs = costs_of(layers, (3, 1), gpipe(2, 4), NEVER, fixed=fixed, latency=0.25)
    assert (costs.forward, costs.backward, costs.weight, costs.recompute) == ((6.5, 5.5), (11, 9.5), (), ())
    costs = costs_of(layers, (3, 1), zb_h1(2, 4), Checkpointing("except_last", 1, True))
    assert (costs.backward, costs.weight, costs.full) == ((9, 5), (3, 5), (10.5, 9))
    assert (costs.recompute, costs.spared) == ((6, 5), (3,))
    with pytest.raises(ValueError, match=r"partition \[2, 1\] does not cut 4 layers into the schedule's 2 stages"):
        costs_of(layers, (2, 1), gpipe(2, 4), NEVER)
