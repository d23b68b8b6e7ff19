"""Searches for an order: named schedules, priority rules and small moves; the best one is kept.

::

    named schedules within the cap ─┐
    priority rules ─────────────────┴─► the best few ── small moves ─► the best ── simulate ─► Found

Every result is priced by `simulate`, which shares no code with the search, and is never worse than a named schedule. It
is the optimum where a lower bound of that price, our own or the solver's, is as high.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from time import perf_counter
from typing import Any

from microp.orders.bounds import Bounds, lower_bounds
from microp.orders.improve import improve, joined
from microp.orders.pairing import paired
from microp.orders.problem import Problem, Rows, makespan_of
from microp.orders.rules import by_rules
from microp.orders.solver import Solved, solve
from microp.schedule import Schedule, builders
from microp.simulator import simulate
from microp.trace import makespan

STARTS = 6  # rounds of small moves
PAIRING = 1.0  # seconds, at least, in which pairs are tried one by one


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    schedule: Schedule
    makespan: Any
    method: str  # what found it: `named`, `rules`, `moves` or `solver`
    bounds: Bounds | None  # lower bounds of the makespan of any order; None if there are none
    named: dict[str, Any] = field(default_factory=dict)  # the makespans of the named schedules that keep within the cap
    refused: dict[str, Any] = field(default_factory=dict)  # the peaks of the named schedules that do not
    seconds: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether it is known that no order is faster."""
        return self.bounds is not None and self.bounds.prove(self.makespan)


def search(problem: Problem, seconds: float = 10.0, seed: int = 0, moves: int = 60_000) -> Found:
    """Return the best order found.

    Args:
        seconds: after this time no further move is tried.
        seed: of the random moves. With the same seed and enough time the result is the same.
    """
    began = perf_counter()
    until = began + seconds
    bounds = lower_bounds(problem)  # of orders without pairs
    named, refused = named_schedules(problem)
    orders: list[tuple[Any, str, Rows]] = []

    def add(method: str, rows: Rows) -> None:
        if all(map(problem.fits, rows)) and (time := makespan_of(problem, rows)) is not None:
            orders.append((time, method, rows))

    # 1. named schedules and priority rules
    for schedule in named:
        add("named", problem.normal(problem.rows_of(schedule)))
    for rows in by_rules(problem):
        add("rules", rows)
    _sort(problem, orders)
    # 2. small moves
    random = Random(seed)
    for turn in range(STARTS):  # from different orders first, from the best of all at the end
        if bounds.prove(orders[0][0]):
            break
        _, _, rows = orders[min(turn, len(orders) - 1) if turn < STARTS - 2 else 0]
        share = perf_counter() + (until - perf_counter()) / (STARTS - turn)
        time, better = improve(problem, rows, random, moves // STARTS, share, bounds)
        if time < orders[0][0]:
            orders.insert(0, (time, "moves", better))
    # 3. the best by simulation: a named one if none is faster; where pairs have a time, with pairs
    times = {schedule.name: _priced(problem, schedule) for schedule in named}
    found: list[tuple[Any, str, Schedule]] = [(times[schedule.name], "named", schedule) for schedule in named]
    for _, method, rows in sorted(orders, key=lambda each: each[0])[:STARTS]:
        schedule = problem.schedule(joined(problem, rows))
        found.append((_priced(problem, schedule), method, schedule))
    if problem.costs.pair:
        limit = max(until, perf_counter() + PAIRING)
        time, with_pairs = paired([each for _, _, each in found], problem.costs, limit, problem.keeps)
        found.append((time, "moves", with_pairs))
    time, method, schedule = min(found, key=lambda each: each[0])
    if method == "named" and schedule not in named:  # divided, joined or relabelled
        method = "moves"
    return Found(schedule, time, method, None if problem.costs.pair else bounds, times, refused, perf_counter() - began)


def _sort(problem: Problem, orders: list[tuple[Any, str, Rows]]) -> None:
    """Sort the orders, the fastest first, after adding what is easily made of the fastest ones."""
    orders.sort(key=lambda each: each[0])
    for time, _, rows in orders[:STARTS]:
        others = [*_relabelled(problem, rows), *([joined(problem, rows)] if any(problem.joins) else [])]
        for other in filter(lambda each: all(map(problem.fits, each)), others):
            found = makespan_of(problem, other)
            if found is not None and found < time:
                orders.append((found, "moves", other))
    orders.sort(key=lambda each: each[0])


def _relabelled(problem: Problem, rows: Rows) -> Iterator[Rows]:
    """Yield the order with a microbatch of the rarest kind in the place of one of another kind, and sorted by time."""
    kinds, slices, units = problem.kinds[:: problem.slices], problem.slices, problem.units
    rare = kinds.index(min(kinds, key=kinds.count))
    others = [other for other, kind in enumerate(kinds) if kind != kinds[rare]]
    by_length = sorted(range(len(kinds)), key=lambda at: sum(problem.timing.takes[at * slices :: units]))
    sorts = [dict(enumerate(order)) for order in (by_length, by_length[::-1])] if others else []
    for labels in (*({rare: other, other: rare} for other in others), *sorts):
        first = {at: labels.get(at // slices, at // slices) * slices + at % slices for at in range(units)}
        yield [[n - n % units + first[n % units] for n in row] for row in rows]


def with_solver(problem: Problem, found: Found, seconds: float, workers: int = 2) -> tuple[Found, Solved]:
    """Return the search's result or the solver's, whichever is faster by simulation, and the solver's answer.

    The result's bounds have the solver's beside our own.

    Args:
        found: the result of `search`, which hints the solver.
        seconds: the solver's time limit.
        workers: how many of the solver's searches run side by side.

    Raises:
        ValueError: OR-Tools is not installed.
    """
    bounds = lower_bounds(problem)
    solved = solve(problem, problem.rows_of(found.schedule), seconds, workers, bounds.best)
    found, rows = replace(found, bounds=found.bounds and bounds._replace(solver=solved.bound)), solved.rows
    if rows is not None and all(map(problem.fits, rows)) and makespan_of(problem, rows) is not None:
        schedule = problem.schedule(joined(problem, rows))
        solved = replace(solved, makespan=_priced(problem, schedule))
        if solved.makespan < found.makespan:
            found = replace(found, schedule=schedule, makespan=solved.makespan, method="solver")
    return found, solved


def _priced(problem: Problem, schedule: Schedule) -> Any:
    return makespan(simulate(schedule, problem.costs))


def named_schedules(problem: Problem) -> tuple[list[Schedule], dict[str, Any]]:
    """Return the named schedules with the problem's placement that keep within the cap, and the peaks of the others."""
    within, refused = [], {}
    for schedule in _with_placement(problem):
        peak = max(problem.peak(row) for row in problem.rows_of(schedule))
        if problem.cap is None or peak <= problem.cap:
            within.append(schedule)
        else:
            refused[schedule.name] = peak
    return within, refused


def _with_placement(problem: Problem) -> Iterator[Schedule]:
    loops, shape = problem.stages // problem.ranks, (problem.placement, problem.slices, problem.copies)
    slices = {"slices": problem.slices} if problem.slices > 1 else {}
    named = builders.orders(problem.ranks, problem.chunks, loops, **slices)
    typed = [problem.typed] if problem.typed is not None else []
    for schedule in (*typed, *(order for order in named if order.name not in {asked.name for asked in typed})):
        places = tuple(schedule.placement[stage] for stage in range(schedule.stages))
        if (places, schedule.slices, schedule.copies) == shape:
            yield schedule if problem.costs.pair else schedule.apart
