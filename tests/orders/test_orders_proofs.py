"""What is said of an order is true of the price of `simulate`: its time, every lower bound, and that it is the optimum.

All orders of small problems are tried, see `every_order`: over every link rule, recomputation, overhead per action,
full backwards that take less than B and W, caps, placements, and times of many digits.
"""

from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, permutations, product
from random import Random
from typing import Any

import pytest
from every_order import Orders

from microp.orders import Problem, search, with_solver
from microp.orders.problem import ends_of
from microp.schedule import Action, Op, Schedule, validate
from microp.simulator import LINK_MODELS, Costs, simulate
from microp.trace import makespan

MODES = ("never", "always", "except_last", "except_first")  # which microbatches a B recomputes
PLAIN, LOOPED, FOLDED = (lambda s, ranks: s), (lambda s, ranks: s % ranks), (lambda s, ranks: min(s, 2 * ranks - 1 - s))


def problem_of(
    random: Random, placement, chunks, rule, mode, overhead, full, slices=1, copies=1, unlike=False
) -> Problem:
    """Return a problem of this kind with random times, whole or of many digits, under a cap or none."""
    stages, digits, units = len(placement), random.random() < 0.2, chunks * slices

    def times(least: int, most: int) -> tuple[Any, ...]:
        return tuple(random.uniform(least, most) if digits else random.randint(least, most) for _ in placement)

    forward, backward, weight = (times(1, 9) for _ in range(3))
    given: dict[str, Any] = {"latency": random.randint(0, 6), "transfer": LINK_MODELS[rule]}
    given["overhead"] = times(0, 2) if overhead else ()
    given["full"] = tuple(random.randint(1, int(b + w)) for b, w in zip(backward, weight, strict=True)) if full else ()
    given["recompute"] = () if mode == "never" else times(1, 6)
    given["spared"] = {"except_last": (units - 1,), "except_first": (0,)}.get(mode, ())
    if unlike:
        given["shares"], given["sizes"] = (tuple(random.randint(1, 3) for _ in range(units)) for _ in range(2))
        given["boundary"], given["bandwidth"] = times(0, 3), 1
    loops = stages // (max(placement) + 1)
    cap = random.choice((None, *range(loops // copies * slices, loops * units // copies + 1)))
    return Problem(placement, chunks, Costs(forward, backward, weight, **given), cap, slices, copies)


def check(problem: Problem) -> None:
    costs, cap = problem.costs, problem.cap
    found = search(problem, seconds=1, moves=200)
    known = [(found, found.bounds.best, found.proven)]
    if find_spec("ortools") is not None:
        better, solved = with_solver(problem, found, seconds=20)
        known.append((better, solved.bound, better.proven))
    for each, bound, proven in known:
        assert makespan(simulate(validate(each.schedule, cap), costs)) == each.makespan
        assert bound <= each.makespan * (1 + 1e-9)
        limit = each.makespan if proven else bound
        orders = Orders(problem.placement, problem.chunks, costs, cap, problem.slices, problem.copies)
        faster = orders.faster_than(limit * (1 - 1e-9))
        assert faster is None, f"{problem}: {limit} is claimed; {makespan(simulate(faster, costs))} exists: {faster}"


ANY = "any cap"
ALL = [*product(LINK_MODELS, MODES, (False, True), (False, True))]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: "-".join(map(str, kind)))
def test_no_order_of_two_ranks_and_two_microbatches_is_faster_than_claimed(kind):
    check(problem_of(Random(str(kind)), (0, 1), 2, *kind))


@pytest.mark.parametrize(
    ("placement", "chunks", "cap", "few"),
    [
        ((0,), 4, ANY, 4),
        ((0, 1), 3, ANY, 3),
        ((0, 1), 4, ANY, 1),
        ((0, 1, 2), 2, ANY, 1),
        ((0, 1, 2), 3, ANY, 1),
        ((0, 1, 2), 4, 1, 1),
        ((0, 1, 2), 4, 2, 0),
        ((0, 1, 0, 1), 2, ANY, 2),
        ((0, 1, 1, 0), 2, ANY, 2),
    ],
    ids=str,
)
def test_no_order_is_faster_than_claimed(placement, chunks, cap, few, whole):
    for seed, kind in enumerate(ALL if whole else Random(placement[-1]).sample(ALL, few)):
        problem = problem_of(Random(seed), placement, chunks, *kind)
        check(problem if cap is ANY else replace(problem, cap=cap))


@pytest.mark.parametrize("unlike", [False, True], ids=["alike", "unlike"])
@pytest.mark.parametrize(
    ("placement", "chunks", "slices", "copies", "few"),
    [
        ((0, 1), 3, 1, 1, 2),
        ((0, 1), 1, 3, 1, 3),
        ((0, 1), 2, 2, 1, 2),
        ((0, 1, 2), 1, 2, 1, 3),
        ((0, 1, 0, 1), 1, 2, 1, 3),
        ((0, 1, 1, 0), 2, 1, 2, 3),
        ((0, 1, 2, 1, 2, 0), 2, 1, 2, 2),
        ((0, 1, 1, 0), 2, 2, 2, 1),
    ],
    ids=str,
)
def test_no_order_of_slices_copies_and_units_that_differ_is_faster_than_claimed(
    placement, chunks, slices, copies, few, unlike, whole
):
    for seed, kind in enumerate(ALL if whole else Random(chunks + slices).sample(ALL, few)):
        check(problem_of(Random(seed), placement, chunks, *kind, slices, copies, unlike))


@pytest.mark.parametrize("rule", ["sender_busy", "serial_link"])
def test_the_orders_that_are_tried_are_all_orders(rule):
    """On two ranks with two microbatches, where every sequence of every rank can be priced by `simulate`."""
    problem = problem_of(Random(3), (0, 1), 2, rule, "except_last", overhead=True, full=True)
    times = []
    for rows in product(every_row(0), every_row(1)):
        try:
            times.append(makespan(simulate(Schedule("any", 2, rows), problem.costs)))
        except ValueError:  # it deadlocks
            continue
    orders = Orders((0, 1), 2, problem.costs, None)
    assert len(times) > 1000
    assert orders.faster_than(min(times)) is None
    assert makespan(simulate(orders.faster_than(min(times) + 0.001), problem.costs)) == min(times)


def every_row(stage: int) -> list[tuple[Action, ...]]:
    """Return all rows of a rank with one stage and two microbatches, each with a B or with an I and a W."""
    found = []
    for kinds in product(((Op.F, Op.B), (Op.F, Op.I, Op.W)), repeat=2):
        parts = [[Action(op, stage, microbatch) for op in ops] for microbatch, ops in enumerate(kinds)]
        rows = permutations(chain(*parts))
        found += [row for row in rows if all(sorted(part, key=row.index) == part for part in parts)]
    return found


@pytest.mark.parametrize("rule", LINK_MODELS)
def test_the_search_prices_as_the_simulator_does(rule):
    random = Random(rule)
    for placement in ((0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0)):
        problem = problem_of(random, placement, 4, rule, "except_last", overhead=True, full=True)
        found = search(problem, seconds=1, moves=50)
        rows, spans = problem.rows_of(found.schedule), simulate(found.schedule, problem.costs)
        ends = ends_of(problem, rows)
        assert {problem.action(n): ends[n] for row in rows for n in row} == pytest.approx(
            {s.action: s.end for s in spans}
        )
