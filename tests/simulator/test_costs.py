"""What an action costs, what a hop costs, and what is refused."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from drawn import equal, random_costs, random_schedule

from microp.schedule import Op
from microp.schedule.builders import gpipe, one_f_one_b, zb_h1
from microp.settings import NEVER, Checkpointing, Holds
from microp.simulator import (
    Costs,
    LayerMemory,
    LayerTimes,
    Size,
    costs_of,
    for_stages,
    simulate,
    simulate_on_cores,
    stage_bytes,
    weight_bytes,
)
from microp.simulator.link_model import LinkModel, Rendezvous, SenderBusy, SerialLink
from microp.trace import makespan


def test_a_hop_is_latency_and_size_over_bandwidth():
    costs = for_stages(3, forward=1, backward=1, latency=2, boundary=(8, 9, 6), bandwidth=3)
    assert [costs.hop(stage) for stage in (1, 2)] == [5, 4]
    assert type(costs.hop(1)) is int
    assert for_stages(2, forward=1, backward=1, boundary=5, bandwidth=Fraction(1, 2)).hop(1) == 10
    assert for_stages(2, forward=1, backward=1, boundary=5, bandwidth=0.5).hop(1) == 10.0
    assert for_stages(2, forward=1, backward=1, boundary=5, latency=7).hop(1) == 7


def test_costs_of_the_model_s_stages_are_those_of_each_copy_of_it():
    assert for_stages(4, 2, forward=(1, 2), backward=(3, 4, 5, 6), weight=7) == Costs(
        (1, 2, 1, 2), (3, 4, 5, 6), (7, 7, 7, 7)
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"boundary": (1,)}, "costs.boundary has 1 value for 4 stages: give one per stage, or one for all"),
        ({"weight": (1, 2, -3, 4)}, "costs.weight\\[2\\]=-3 is negative: give a number from 0 up"),
        ({"latency": (0, 1, -2, 3)}, "costs.latency\\[2\\]=-2 is negative"),
        ({"full": (1, 2)}, "costs.full has 2 values for 4 stages: give one per stage, or one for all"),
        ({"spared": (-1,)}, "costs.spared has -1: microbatches go from 0 to chunks - 1"),
    ],
)
def test_refusals_name_the_key(given, message):
    """`config/bad_input.txt` has the others."""
    with pytest.raises(ValueError, match=message):
        for_stages(4, **{"forward": 1, "backward": 2, **given})


# --- stages from layers: memory and times ---------------------------------------------------------


LAYER = LayerMemory(
    weights=100,
    activation=Size(per_row=30),  # its input, something inside, its output
    boundary=Size(per_row=10),
    input_kept=Size(per_row=10),
    shared=Size(per_row=10),
    in_backward=Size(40, 5),
)


def test_a_tensor_that_two_layers_keep_counts_once():
    memory = stage_bytes([LAYER] * 3, 2, NEVER)
    assert memory.whole == 2 * (20 + 20 + 20)  # without the input of the stage
    assert memory.in_backward == 40 + 2 * 5  # the last layer's: after it, more is free than is needed
    assert (memory.rebuilt, memory.gradients) == (0, 300)
    assert weight_bytes([LAYER] * 5, (2, 3)) == [200, 300]


def test_small_gradients_wait_for_the_end_of_a_stage_s_linears():
    small = LAYER._replace(in_weight=Size(2, 1), products=Size(5))
    large = LAYER._replace(in_weight=Size(50, 1))
    assert stage_bytes([small] * 3, 2, NEVER).in_weight == 3 * 5 + 2 + 2
    assert stage_bytes([small, large], 2, NEVER).in_weight == 5 + 50 + 2
    later = LAYER._replace(in_graphs=Size(60), freed=Size(10))  # an embedding's, when those are free
    assert stage_bytes([later, small], 2, NEVER).in_weight == 60
    assert stage_bytes([later, later], 2, NEVER).in_weight == 60
    assert stage_bytes([later, small._replace(freed=Size(10))], 2, NEVER).in_weight == 50


def test_what_enters_a_layer_is_kept_by_operations_alone_inside_a_stage():
    layer = LAYER._replace(input_unsaved=Size(per_row=10), input_pending=Size(per_row=10), pending=Size(per_row=15))
    memory = stage_bytes([layer._replace(pending_unsaved=Size(per_row=10))] * 3, 2, NEVER)
    assert (memory.whole, memory.input_whole) == (2 * (20 + 20 + 20), 2 * 10)  # something inside, the output
    assert memory.pending == 2 * (5 + 5 + 5)


def test_what_some_backwards_of_a_stage_need_in_addition():
    """Two layers that keep 6 each, of which they share 2; a backward needs 9 more, and the last layer's frees 4."""
    own = {"input_kept": Size(2), "in_backward": Size(9), "in_weight": Size(6), "products": Size(1)}
    own |= {"linear": Size(3), "in_first_graphs": Size(5), "freed": Size(1)}  # 5 bytes of weights: 2 are of no Linear
    layers = [LayerMemory(5, Size(6), Size(2), Size(2), **own)] * 2
    alone = stage_bytes(layers, 1, NEVER)
    assert alone.in_backward == 9  # then 9 - 4
    assert (alone.own_send, alone.first_backward) == (0, 1)
    assert alone.in_weight == 2 * 1 + 6  # the small gradients of both, and a large one
    assert alone.in_weight + alone.first_weight == 2 * 3 + 2 - 1 + 2  # the Linears' first; one layer's graph is free
    after = LayerMemory(5, boundary=Size(6))  # 6 of the 9 are the gradient that has come, which counts apart
    sending = stage_bytes([layers[0], layers[1]._replace(shared=Size(6))], 1, NEVER, after, Holds(messages=True))
    assert sending.in_backward == 9 - 6  # then 9 - 4, without a gradient of 2
    assert (sending.own_send, sending.first_backward) == (6, 6 + 5)  # what is sent, then the weights' 5


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


# --- the four rules, drawn: tensors from rank 0 to rank 1, an F a digit long for each unit of time ---


def drawn(spans, ranks: int) -> tuple[str, ...]:
    rows = [["."] * makespan(spans) for _ in range(ranks)]
    for span in spans:
        rows[span.rank][span.start : span.end] = str(span.microbatch) * (span.end - span.start)
    return tuple("".join(row).rstrip(".") for row in rows)


@pytest.mark.parametrize(
    ("transfer", "forward", "hop", "rows"),
    [
        (LinkModel(), 1, 2, ("0123", "...0123")),
        (SenderBusy(), 1, 2, ("0..1..2..3", "...0..1..2..3")),
        (SerialLink(), 1, 2, ("0123", "...0.1.2.3")),
        (Rendezvous(), 1, 2, ("0123", "...0..1..2..3")),
        (LinkModel(), 2, 1, ("00112233", "...00112233")),
        (SenderBusy(), 2, 1, ("00.11.22.33", "...00.11.22.33")),
        (SerialLink(), 2, 1, ("00112233", "...00112233")),
        (Rendezvous(), 2, 1, ("00112233", "...00.11.22.33")),
    ],
)
def test_hops_longer_and_shorter_than_a_forward(transfer, forward, hop, rows):
    costs = Costs((forward, forward), (1, 1), latency=hop, transfer=transfer)
    assert drawn([span for span in simulate(gpipe(2, 4), costs) if span.op is Op.F], 2) == rows


# --- ranks that share cores: no work is lost, and a core each is the plain simulation -------------


def test_a_core_each_is_the_plain_simulation():
    random = Random(5)
    for _ in range(60):
        schedule = random_schedule(random)
        overhead = tuple(random.randint(0, 3) for _ in range(schedule.stages))
        costs = replace(random_costs(random, schedule), transfer=LinkModel(), overhead=overhead)
        plain, shared = simulate(schedule, costs), simulate_on_cores(schedule, costs, lambda _: 1.0)
        assert np.allclose(plain.start.astype(float), shared.start)
        assert np.allclose(plain.end.astype(float), shared.end)
        assert np.allclose(plain.wait_start.astype(float), shared.wait_start)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_no_work_is_lost(cores):
    schedule = one_f_one_b(4, 6)
    costs = equal(4, 1, 2)
    spans = simulate_on_cores(schedule, costs, lambda computing: min(1.0, cores / computing))
    work, time = 4 * 6 * 3, makespan(spans)
    assert work / cores <= time + 1e-9
    if cores == 1:
        assert time == pytest.approx(work)  # something always runs
    assert time < makespan(simulate(schedule, costs)) * 4 / cores + 1e-9


def test_the_engine_s_own_time_is_no_compute():
    schedule = gpipe(2, 3)
    costs = replace(equal(2, 4, 8, latency=1), overhead=(1, 2))
    spans = simulate(schedule, costs)
    rank0 = [span for span in spans if span.rank == 0]
    assert [span.wait_start - before.end for before, span in pairwise(rank0)] == [1] * 5
    assert {span.end - span.start for span in spans} == {4, 8}
    assert (
        makespan(spans) == makespan(simulate(schedule, equal(2, 4, 8, latency=1))) + 5 * 2
    )  # rank 1 is busy from F0 to B2
