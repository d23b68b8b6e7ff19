"""Formulas against the simulator, exactly, over random integer costs."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice, product

import pytest
from catalogue import BUILDERS, held_peak, lengths

from microp.schedule import Op, Schedule, validate
from microp.schedule import builders as schedules
from microp.simulator import Costs, closed_forms, even_shares, simulate
from microp.trace import Span, bubble_fraction, makespan

TRIALS = 120


def _largest_span(spans: list[Span]) -> int:
    ranks = {span.rank for span in spans}
    own = {rank: [span for span in spans if span.rank == rank] for rank in ranks}
    return max(max(s.end for s in row) - min(s.start for s in row) for row in own.values())


def _random_schedule(name: str, rng: random.Random) -> Schedule:
    ranks = rng.choice([2, 4, 6, 8]) if name in ("dualpipe", "chimera") else rng.randint(1, 8)
    chunks = rng.choice([rng.randint(1, 3 * ranks + 2), ranks * rng.randint(1, 3), 2 * ranks])
    chunks += chunks % 2 if name in ("dualpipe", "chimera") else 0
    return rng.choice(BUILDERS[name])(ranks, max(chunks, 2 * ranks) if name.startswith("dualpipe") else chunks)


def _random_costs(schedule: Schedule, rng: random.Random) -> Costs:
    """Equal stages; often with F = B = W, often with hops that cost nothing."""
    f, b, w = (rng.randint(1, 9) for _ in range(3))
    f, b, w = rng.choice([(f, b, w), (f, f, f), tuple(sorted((f, b, w), reverse=True)), (f, b, 0)])
    if schedule.name == "chimera" and rng.random() < 0.5:
        f, b, w = b + w, b, w
    hop, stages = rng.choice([0, 0, rng.randint(1, 9)]), schedule.stages
    return Costs((f,) * stages, (b,) * stages, (w,) * stages, latency=hop, shares=even_shares(schedule))


def _is_form(schedule: Schedule, costs: Costs) -> bool:
    """Whether there are closed forms, which are then the simulated makespan and bubble."""
    expected = closed_forms.makespan(schedule, costs)
    if expected is not None:
        spans = simulate(schedule, costs)
        assert makespan(spans) == expected, (schedule.name, len(schedule.ranks), schedule.chunks, costs)
        assert bubble_fraction(spans) == pytest.approx(closed_forms.bubble(schedule, costs), abs=1e-12)
    return expected is not None


@pytest.mark.parametrize("name", BUILDERS)
def test_makespan_and_bubble(name: str, whole: bool) -> None:
    """Of some orders, with `--whole` of all that the catalogue has, too."""
    rng = random.Random(name)
    orders = [_random_schedule(name, rng) for _ in range(TRIALS)]
    if whole:
        orders += [build(*numbers) for build in BUILDERS[name] for numbers in lengths(name, whole=True)]
    assert sum(_is_form(order, _random_costs(order, rng)) for order in orders) >= TRIALS // 12


@pytest.mark.parametrize("name", BUILDERS)
def test_makespan_and_bubble_with_recomputation(name: str) -> None:
    rng = random.Random(name)
    for order in [_random_schedule(name, rng) for _ in range(TRIALS // 4)]:
        costs = _random_costs(order, rng)
        again = replace(costs, recompute=(rng.randint(1, 9),) * order.stages)
        known = _is_form(order, again)
        assert known or name not in ("naive", "gpipe", "one_f_one_b")
        assert closed_forms.makespan(order, replace(again, spared=(order.chunks - 1,))) is None


@pytest.mark.parametrize("name", ["interleaved", "dualpipe_v", "dualpipe"])
def test_makespan_and_bubble_with_pairs(name: str, whole: bool) -> None:
    """Pairs with a time of their own, from the longer of the two actions to their sum."""
    rng = random.Random(name)
    known = 0
    for ranks, chunks in lengths(name, whole=whole):
        if name == "interleaved":
            knobs = {"stages_per_rank": rng.randint(1, 3), "extra_warmup": rng.randint(1, 3), "overlap": True}
            schedule = schedules.interleaved(ranks, chunks, **knobs)
        else:
            schedule = getattr(schedules, name)(ranks, chunks)
        stages = validate(schedule).stages
        for _ in range(8):
            f, b, w = (rng.randint(1, 9) for _ in range(3))
            f, b, w = rng.choice([(f, b, w), (f, f, f), tuple(sorted((f, b, w), reverse=True))])
            b, w = (b + w, 0) if name == "interleaved" else (b, w)
            pair = rng.choice([max(f, b + w), f + b + w, rng.randint(max(f, b + w), f + b + w)])
            costs = Costs((f,) * stages, (b,) * stages, (w,) * stages, pair=(pair,) * stages)
            known += _is_form(schedule, costs)
    assert known > 60


@pytest.mark.parametrize("name", ["zb_h2", "zb_v"])
def test_largest_span(name: str) -> None:
    rng = random.Random(name)
    known = 0
    for _ in range(TRIALS):
        schedule = _random_schedule(name, rng)
        costs = _random_costs(schedule, rng)
        expected = closed_forms.largest_span(schedule, costs)
        if expected is not None:
            known += 1
            assert _largest_span(simulate(schedule, costs)) == expected
    assert known >= TRIALS // 12


@pytest.mark.parametrize("name", ["naive", "gpipe"])
def test_makespan_of_unequal_stages(name: str) -> None:
    rng = random.Random(name)
    for _ in range(TRIALS):
        schedule = _random_schedule(name, rng)
        times = [tuple(rng.randint(1, 9) for _ in range(schedule.stages)) for _ in range(3)]
        costs = Costs(*times, latency=rng.randint(1, 9) if name == "naive" else 0)
        assert _is_form(schedule, costs)


def test_makespan_of_1f1b_with_one_heavy_stage() -> None:
    rng = random.Random(1)
    for _ in range(TRIALS):
        ranks = rng.randint(2, 6)
        schedule = schedules.one_f_one_b(ranks, rng.randint(ranks, 3 * ranks))
        heavy, rho = rng.randrange(ranks), rng.randint(2, 4)
        times = [[rng.randint(1, 9)] * ranks for _ in range(3)]
        for row in times:
            row[heavy] *= rho
        costs = Costs(*map(tuple, times))
        assert _is_form(schedule, costs)


@pytest.mark.parametrize("name", BUILDERS)
def test_in_flight_and_held_peaks(name: str, whole: bool) -> None:
    known = {"in flight": 0, "held": 0}
    step = 1 if whole or len(BUILDERS[name]) < 3 else 3  # shapes of one schedule take turns over K and M
    for number, build in enumerate(BUILDERS[name]):
        for ranks, chunks in islice(lengths(name, whole=whole), number % step, None, step):
            schedule = build(ranks, chunks)
            loops = schedule.depth // ranks * schedule.slices
            in_flight = closed_forms.in_flight_peak(schedule)
            if in_flight is not None:
                known["in flight"] += 1
                assert in_flight == [Fraction(peak, loops) for peak in held_peak(schedule, Op.B, Op.I)]
            held = closed_forms.held_peak(schedule)
            if held is not None:
                known["held"] += 1
                assert held == [Fraction(peak, loops) for peak in held_peak(schedule)]
    assert known["held"] > 10
    assert name == "v_min" or known["in flight"] > 10


NO_FORM = {
    "unequal stages and a hop": (schedules.gpipe(2, 2), Costs((1, 2), (1, 2), latency=1)),
    "three different stages": (schedules.one_f_one_b(3, 3), Costs((1, 2, 3), (1, 2, 3))),
    "a heavy stage, M < K": (schedules.one_f_one_b(4, 3), Costs((1, 1, 1, 2), (1, 1, 1, 2))),
    "a hop too long": (schedules.eager_1f1b(2, 2), Costs((1, 1), (1, 1), latency=2)),
    "hops of looped stages": (schedules.interleaved(2, 4), Costs((1,) * 4, (1,) * 4, latency=1)),
    "M < K": (schedules.zb_interleaved(3, 2), Costs(*[(1,) * 6] * 3)),
    "W longer than F": (schedules.zb_h1(2, 2), Costs((1, 1), (1, 1), (2, 2))),
    "M < 2K-1": (schedules.zb_v(2, 2), Costs(*[(1,) * 4] * 3)),
    "V-Half of two ranks": (schedules.v_half(2, 4), Costs(*[(1,) * 4] * 3)),
    "an unknown name": (Schedule("mine", 2, schedules.gpipe(2, 2).ranks), Costs((1, 1), (1, 1))),
}


@pytest.mark.parametrize("case", NO_FORM)
def test_no_form_where_none_is_exact(case: str) -> None:
    assert closed_forms.makespan(*NO_FORM[case]) is None
    assert closed_forms.bubble(*NO_FORM[case]) is None


# --- published -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "rate"), [("one_f_one_b", 0.2431), ("zb_h1", 0.1585), ("zb_h2", 0.1083)])
def test_zero_bubble_tables_5_and_9(build: str, rate: float) -> None:
    """arXiv 2401.10241: 8 ranks, 24 chunks; bubble = (cost - M T) / cost, cost the largest span of a rank."""
    f, b, w, c = (Fraction(ms) for ms in ("18.522", "18.086", "9.337", "0.601"))
    spans = simulate(getattr(schedules, build)(8, 24), Costs((f,) * 8, (b,) * 8, (w,) * 8, c))
    cost = _largest_span(spans)
    assert round(float((cost - 24 * (f + b + w)) / cost), 4) == rate


# --- interleaved in groups, with another warmup --------------------------------------------------------


def _interleaved_shapes(most: int) -> Iterator[tuple[int, int, Schedule]]:
    """Interleaved orders of 2 to `most` ranks, each with K and the microbatches of its last round, M mod G."""
    for ranks, loops in product(range(2, most + 1), (2, 3)):
        for chunks in range(ranks, 3 * ranks + 3):
            for group, warmup, extra in product(range(ranks, chunks + 1), ("single", "double"), (0, 1)):
                order = schedules.interleaved(ranks, chunks, loops, group, extra, schedules.Warmup(warmup))
                yield ranks, chunks % group, order


def test_a_last_round_below_the_number_of_ranks_is_longer_or_deadlocks(whole: bool) -> None:
    """Where no round is, the closed form holds for every group and warmup."""
    found = Counter()
    for ranks, left, order in _interleaved_shapes(8 if whole else 4):
        costs = Costs((10,) * order.stages, (20,) * order.stages)
        form = (order.chunks * order.stages // ranks + ranks - 1) * 30
        if 0 < left < ranks:
            try:
                found["longer" if makespan(simulate(validate(order), costs)) > form else "form"] += 1
            except ValueError:
                found["deadlock"] += 1
        else:
            assert closed_forms.makespan(order, costs) == makespan(simulate(order, costs)) == form
    assert found["form"] == 0
    assert found["longer"] > 50
    assert found["deadlock"] > 0


def test_a_smaller_group_of_gis_never_holds_more_and_never_waits_less() -> None:
    for ranks, loops in product((2, 3, 4, 5, 6), (2, 3)):
        orders = [schedules.gis(ranks, 60, loops, group) for group in range(-(-ranks // 2), ranks + 1)]
        peaks = [max(held_peak(order)) for order in orders]
        times = [makespan(simulate(order, Costs(*[(1,) * order.stages] * 3))) for order in orders]
        assert peaks == sorted(peaks)
        assert times == sorted(times, reverse=True)
        assert peaks[-1] == max(held_peak(schedules.zb_interleaved(ranks, 60, loops)))
