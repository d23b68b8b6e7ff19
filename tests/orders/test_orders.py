"""The search for orders: never worse than a named schedule, within the cap, above the bounds, near the optimum."""

from dataclasses import replace
from itertools import pairwise, product
from math import inf
from random import Random

import pytest
from every_order import Orders

from microp.orders import Problem, lower_bounds, search, solve, with_solver
from microp.orders.pairing import paired
from microp.schedule import Op, Schedule, builders, validate
from microp.simulator import Costs, simulate
from microp.trace import makespan


def random_problem(random: Random, most: int = 4) -> Problem:
    """Unequal stages, on ranks one by one, in loops or in a V, under a cap that is often tight."""
    loops = random.choice((1, 1, 2))
    ranks, chunks = random.randint(2, most), random.randint(2, 2 * most)
    stages = ranks * loops
    folded = loops == 2 and random.random() < 0.5
    placement = tuple(min(s, 2 * ranks - 1 - s) if folded else s % ranks for s in range(stages))
    costs = Costs(*[tuple(random.randint(1, 9) for _ in range(stages)) for _ in range(3)], latency=random.randint(0, 2))
    return Problem(placement, chunks, costs, random.choice((None, *range(loops, stages + 2))))


def test_found_orders_are_valid_within_the_cap_and_never_worse_than_named_ones():
    random = Random(2)
    for _ in range(8):
        problem = random_problem(random)
        found = search(problem, seconds=60, moves=300)
        validate(found.schedule, problem.cap)
        assert tuple(found.schedule.placement.values()) == problem.placement
        assert found.makespan == makespan(simulate(found.schedule, problem.costs))
        assert found.makespan <= min(found.named.values(), default=found.makespan)
        assert found.makespan >= found.bounds.best
        assert not set(found.named) & set(found.refused)


def test_the_search_finds_the_best_of_every_order_there_is():
    random = Random(3)
    for _ in range(6):
        costs = Costs(*[(random.randint(1, 5), random.randint(1, 5)) for _ in range(3)], latency=random.randint(0, 1))
        problem = Problem((0, 1), 2, costs, random.choice((None, 1, 2)))
        found = search(problem, seconds=60, moves=300)
        assert Orders(problem.placement, problem.chunks, costs, problem.cap).faster_than(found.makespan) is None


def test_a_cap_that_no_order_meets_says_by_how_much():
    with pytest.raises(
        ValueError, match=r"no order holds so little: rank 0 has to hold 2, .* its 2 stages: give 2 or more"
    ):
        Problem((0, 1, 0, 1), 4, Costs((1,) * 4, (1,) * 4), 1)


def test_the_solver_proves_what_the_search_found():
    pytest.importorskip("ortools")
    random = Random(4)
    for _ in range(6):
        problem = random_problem(random, most=3)
        found = search(problem, 60, moves=2000)
        better, solved = with_solver(problem, found, seconds=60)
        assert solved.makespan == better.makespan <= found.makespan
        assert not solved.rounded
        if better.proven:
            assert lower_bounds(problem).best <= solved.makespan == solved.bound
            assert found.makespan <= 1.02 * solved.makespan


def test_costs_of_many_digits_are_rounded_for_the_solver_only():
    pytest.importorskip("ortools")
    costs = Costs((1.00001, 2.7182818), (1.5, 3.1415927), (0.7071, 1.0))
    problem = Problem((0, 1), 3, costs, 2)
    found = search(problem, 60, moves=100)
    better, solved = with_solver(problem, found, seconds=60)
    assert solved.rounded
    assert better.makespan == makespan(simulate(better.schedule, costs)) <= found.makespan
    assert solved.makespan == pytest.approx(better.makespan, rel=0.02)


def test_without_or_tools_the_solver_says_what_to_install(monkeypatch):
    problem = Problem((0,), 1, Costs((1,), (1,)))
    monkeypatch.setattr("microp.orders.solver.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"needs OR-Tools: install microp\[plan\]"):
        solve(problem, problem.rows_of(builders.naive(1, 1)), 1)


def with_pairs(random: Random, most: int) -> Problem:
    """A random problem in which pairs take less than their forward and backward, and hops nothing to more."""
    problem = random_problem(random, most)
    costs = problem.costs
    parts = zip(costs.forward, costs.backward, costs.weight, strict=True)
    times = tuple(min(max(f, b + w) + random.randint(0, 1), f + b + w) for f, b, w in parts)
    return replace(problem, costs=replace(costs, pair=times))


def test_orders_with_pairs_are_valid_within_the_cap_and_never_slower_than_named_ones_with_theirs():
    random, better = Random(5), 0
    for _ in range(8):
        problem = with_pairs(random, 3)
        found = search(problem, seconds=60, moves=100)
        validate(found.schedule, problem.cap)
        assert found.bounds is None
        assert not found.proven
        assert found.makespan == makespan(simulate(found.schedule, problem.costs))
        assert found.makespan <= min(found.named.values(), default=found.makespan)
        apart = search(replace(problem, costs=replace(problem.costs, pair=())), seconds=60, moves=100)
        assert found.makespan <= apart.makespan
        better += found.makespan < apart.makespan
    assert better >= 2


def test_pairs_of_an_order_against_all_choices_of_pairs():
    """Each set of pairs of small orders: what is chosen one by one is the best but for a few, and close to it there."""
    random, worse = Random(6), 0
    for build in (builders.eager_1f1b, builders.zb_h1, builders.one_f_one_b, builders.gpipe) * 4:
        schedule = build(random.choice((2, 3)), 3)
        stages = schedule.stages
        forward, backward, weight = ([random.randint(1, 4) for _ in range(stages)] for _ in range(3))
        pair = [random.randint(max(f, b + w), f + b + w) for f, b, w in zip(forward, backward, weight, strict=True)]
        costs = Costs(*map(tuple, (forward, backward, weight)), pair=tuple(pair), latency=random.randint(0, 2))
        time, found = paired([schedule], costs, inf)
        assert time == makespan(simulate(validate(found), costs))
        assert (found.name == "found") == ((found.ranks, found.pairs) != (schedule.ranks, schedule.pairs))  # no forms
        best = min(least_with_pairs(order, costs) for order in (schedule, replace(found, pairs=frozenset())))
        worse += time > best
        assert time <= 1.1 * best
    assert worse <= 2


def least_with_pairs(schedule: Schedule, costs: Costs) -> int:
    may = [a for row in schedule.ranks for a, b in pairwise(row) if a.op is Op.F and b.op in (Op.B, Op.I)]
    times = []
    for chosen in product((False, True), repeat=len(may)):
        pairs = frozenset(action for action, is_chosen in zip(may, chosen, strict=True) if is_chosen)
        try:
            times.append(makespan(simulate(validate(replace(schedule, pairs=pairs)), costs)))
        except ValueError:  # a pair needs itself
            continue
    return min(times)
