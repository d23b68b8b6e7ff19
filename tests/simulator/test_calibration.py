"""Costs that are read off spans: those of simulated spans give the same spans again."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random

import pytest
from catalogue import EVERY, build, each_builder, label
from drawn import random_costs, random_schedule, read, read_spans

from microp.schedule import Op, Schedule
from microp.schedule.builders import gpipe, one_f_one_b, zb_h1
from microp.simulator import Costs, calibrate, calibrate_steps, for_stages, replay, replay_steps, schedule_of, simulate
from microp.simulator.link_model import LinkModel
from microp.trace import Span, action_times, makespan


def uneven_costs(random: Random, schedule: Schedule) -> Costs:
    """Integers, Fractions or both; a hop is 0, the same everywhere, or each its own, and nothing else."""
    return replace(random_costs(random, schedule, LinkModel()), spared=(), boundary=(), bandwidth=1)


def assert_same_spans(schedule: Schedule, costs: Costs) -> None:
    spans = simulate(schedule, costs)
    again = replay(schedule, spans)
    assert list(again) == list(spans), (schedule.name, len(schedule.ranks), schedule.chunks, costs)
    exact = {int, Fraction} if Fraction in map(type, spans.end.tolist()) else {int}
    assert set(map(type, again.end.tolist())) <= exact


def shown(schedule: Schedule, spans: list[Span]) -> Iterator[int]:
    """The links on which a consumer once waited for its tensor, so that the hop can be seen."""
    ends = {span.action: span.end for span in spans}
    for span in spans:
        source = schedule.source(span.action)
        if source is None or schedule.placement[source.stage] == span.rank:
            continue
        if span.wait_start < ends[source] or span.wait_start < span.start:
            yield max(source.stage, span.stage)


def assert_same_costs(schedule: Schedule, costs: Costs) -> None:
    """As far as the spans show them; a backward's time is with its recomputation, an undivided one's with W."""
    spans = simulate(schedule, costs)
    found = calibrate(schedule, spans)
    kinds = {(span.stage, span.op) for span in spans}
    for stage in range(schedule.stages):
        again = costs.recompute[stage] if costs.recompute else 0
        is_divided = (stage, "I") in kinds
        assert found.forward[stage] == costs.forward[stage]
        expected = costs.backward[stage] if is_divided else costs.full_backward(stage)
        assert found.backward[stage] == expected + again
        if (stage, "W") in kinds:
            assert found.weight[stage] == (costs.weight[stage] if costs.weight else 0)
        if is_divided and (stage, "B") in kinds:
            assert found.full[stage] == costs.full_backward(stage) + again
    for link in set(shown(schedule, list(spans))):
        assert found.hop(link) == costs.hop(link)


def test_costs_of_simulated_spans_give_the_same_spans_again(whole):
    """Stages anywhere, some backwards divided and others not, tensors used in any order; and what builders make."""
    random = Random(12)
    orders = [random_schedule(random) for _ in range(400 if whole else 80)]
    for number, builder in enumerate(EVERY):
        for ranks, chunks in product(range(1, 5), range(1, 15)) if whole else ((2 + number % 3, 4 + number % 4),):
            orders.append(build(builder, ranks, chunks).apart)
    for schedule in orders:
        costs = uneven_costs(random, schedule)
        assert_same_spans(schedule, costs)
        assert_same_costs(schedule, costs)
        bandwidth = random_costs(random, schedule, LinkModel())  # a hop is latency and size over bandwidth
        assert_same_spans(schedule, replace(bandwidth, spared=()))


def test_the_order_that_was_run_is_read_off_the_spans():
    random = Random(13)
    for _ in range(50):
        schedule = random_schedule(random)
        spans = list(simulate(schedule, for_stages(schedule.stages, forward=2, backward=3, weight=1, latency=2)))
        assert schedule_of(random.sample(spans, len(spans)), "random") == schedule


def test_times_are_medians():
    spans = read_spans("F0 F1 F2  .  . B0 B1 B2", " . F0 F1 F2 B0 B1 B2  .")
    assert calibrate(gpipe(2, 3), spans).backward[1] == 1
    lengths = iter((1, 2, 9, 4, 4, 7))
    stretched, time = [], 0
    for span in read_spans("F0 F1 F2 B0 B1 B2"):
        stretched.append(span._replace(wait_start=time, ready=time, start=time, end=(time := time + next(lengths))))
    assert calibrate(gpipe(1, 3), stretched) == Costs((2,), (4,), (0,), latency=(0,))


def moved(spans, by: int) -> list[Span]:
    return [
        span._replace(wait_start=span.wait_start + by, ready=span.ready + by, start=span.start + by, end=span.end + by)
        for span in spans
    ]


def test_several_steps_are_one_after_the_other():
    """A consumer takes the tensor of its own step."""
    schedule, long = one_f_one_b(3, 4), Costs((5, 6, 7), (11, 12, 13), latency=(0, 4, 6))
    one = simulate(schedule, long)
    assert calibrate(schedule, [*one, *moved(one, 1000), *moved(one, 2000)]) == calibrate(schedule, one)
    other = simulate(schedule, Costs((6, 7, 8), (13, 14, 15), latency=(0, 5, 8)))
    third = simulate(schedule, Costs((9, 9, 9), (99, 99, 99), latency=(0, 50, 80)))
    middle = calibrate(schedule, [*moved(third, 2000), *one, *moved(other, 1000)])
    assert middle == calibrate(schedule, other)


def ring(there: int, used: int) -> tuple[Schedule, list[Span]]:
    """Two ranks with two stages each. Link 1 is waited for and takes 4; rank 0 looks for stage 1's F0 at `there`.

    Every action needs one moment before it begins.
    """
    schedule = read("0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0")
    spans = [
        Span(0, Op.F, 0, 0, 0, 1, 1, 10),
        Span(1, Op.F, 1, 0, 0, 14, 14, 20),
        Span(0, Op.F, 2, 0, there, used, used, used + 10),
        Span(1, Op.F, 3, 0, 20, used + 14, used + 14, used + 20),
        Span(1, Op.B, 3, 0, used + 20, used + 21, used + 21, used + 30),
        Span(0, Op.B, 2, 0, used + 10, used + 34, used + 34, used + 40),
        Span(1, Op.B, 1, 0, used + 90, used + 91, used + 91, used + 95),
        Span(0, Op.B, 0, 0, used + 40, used + 99, used + 99, used + 110),
    ]
    return schedule, spans


@pytest.mark.parametrize(
    ("there", "used", "hop"),
    [
        pytest.param(40, 41, 4, id="long there: as on the other links"),
        pytest.param(21, 22, 2, id="seen to take less than on the other links"),
        pytest.param(23, 36, 16, id="waited for longer than any overhead"),
    ],
)
def test_links_that_nobody_waits_at_from_before_the_tensor_is_made(there, used, hop):
    schedule, spans = ring(there, used)
    assert calibrate(schedule, spans).latency == (0, 4, hop, 4)


def rows_of(schedule: Schedule, spans: list[Span]) -> list[dict]:
    """Each rank's row as the trainer writes it, from spans in nanoseconds."""
    own = [[span for span in spans if span.rank == rank] for rank in range(len(schedule.ranks))]
    return [{"rank": rank, **action_times(row)} for rank, row in enumerate(own)]


@each_builder
def test_rows_give_the_same_costs_as_spans(builder):
    random = Random(label(builder))
    for ranks, chunks in ((1, 3), (2, 4), (3, 7), (4, 8)):
        schedule = build(builder, ranks, chunks).apart
        costs = uneven_costs(random, schedule)
        keys = ("forward", "backward", "weight", "full")
        times = {key: tuple(int(420_000 * time) for time in getattr(costs, key)) for key in keys}
        latency = random.choice((0, 300_000, tuple(random.randint(0, 900_000) for _ in range(schedule.stages))))
        spans = simulate(schedule, Costs(**times, latency=latency))
        found = calibrate_steps(schedule, [rows_of(schedule, list(spans))] * 3, spans)
        expected = calibrate(schedule, spans)
        for key in (*keys, "latency"):
            in_ms = [time / 1e6 for time in getattr(expected, key)]
            assert list(getattr(found, key)) == pytest.approx(in_ms, rel=1e-12), key
        assert makespan(simulate(schedule, found)) == pytest.approx(makespan(spans) / 1e6, rel=1e-9)


@pytest.mark.parametrize("build", [gpipe, one_f_one_b, zb_h1])
def test_a_replay_has_the_variation_of_the_traced_step_and_the_length_of_the_steps_in_the_middle(build):
    """Ranks wait for whichever is late: with one time per stage the replay would be too short."""
    schedule, random = build(2, 12), Random("variation")
    steps = []
    weight = 1_000_000 if schedule.input_gradients else None
    even = for_stages(2, forward=1_000_000, backward=2_000_000, weight=weight)
    takes = {action: even.of(action) * random.randint(5, 15) // 10 for row in schedule.ranks for action in row}
    for factor in (10, 30, 9, 11):  # the third step is the shortest, the second one was disturbed
        traced = simulate(schedule, even, {action: time * factor for action, time in takes.items()})
        steps.append(rows_of(schedule, list(traced)))
    found = replay_steps(schedule, steps, traced)
    between = makespan(traced) / 11 * 10.5 / 1e6
    assert makespan(found) == pytest.approx(between, rel=1e-6)
    assert makespan(simulate(schedule, calibrate_steps(schedule, steps, traced))) < 0.97 * between


def test_a_replay_has_the_hops_of_the_traced_step():
    """Where ranks share cores, a few messages wait until their receiver gets a core."""
    schedule = one_f_one_b(4, 8)
    costs = for_stages(4, forward=1_000_000, backward=2_000_000, latency=50_000)
    takes = {action: costs.of(action) for row in schedule.ranks for action in row}
    random = Random("hops")
    late = {action: 5_000_000 for row in schedule.ranks for action in row if random.random() < 0.2}
    traced = simulate(schedule, costs, takes, late)
    assert makespan(traced) > 1.2 * makespan(simulate(schedule, costs))
    found = replay_steps(schedule, [rows_of(schedule, list(traced))], traced)
    assert makespan(found) == pytest.approx(makespan(traced) / 1e6, rel=1e-3)
