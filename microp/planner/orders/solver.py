"""Solves small problems with OR-Tools' CP-SAT, with the search's order as a hint.

::

    one interval per action ── no overlap on a rank
    start(F s,m) >= end(F s-1,m) + hop, and so on      the dependencies
    start(F s,m+1) >= end(F s,m), and so on            microbatches are alike, so each lane is in order
    [start F, end B] x (kept - pending) ┐
    [start F, end W] x pending          ┴─ at most the cap at any time: one cumulative per rank

Times are whole numbers of `resolution` parts of the mean action; costs that are not whole are rounded, and the
status is then one of the rounded problem. The solution is priced again with the real costs by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from microp.planner.orders.problem import NONE, Problem, Rows, ends_of

RESOLUTION = 100  # parts of the mean action, if costs have to be rounded


@dataclass(frozen=True)
class Solved:
    """The solver's answer.

    Attributes:
        rows: the best order that it found; None if it found none.
        proven: whether no order of the (rounded) problem is faster.
        makespan: of that order, in the costs' unit.
        bound: the solver's own lower bound, in the costs' unit.
        rounded: whether the costs had to be rounded: bound and proof are then of the rounded problem.
        seconds: how long the solver ran.
        size: the number of variables and constraints.
    """

    rows: Rows | None
    proven: bool
    makespan: Any
    bound: Any
    rounded: bool
    seconds: float
    size: tuple[int, int]


def solve(problem: Problem, hint: Rows, seconds: float, workers: int = 2, bound: Any = 0) -> Solved:
    """Return the best order that CP-SAT finds.

    Args:
        problem: the problem.
        hint: an order that ends and keeps within the cap; no later end than its makespan is looked for.
        seconds: the solver's time limit.
        workers: how many searches run side by side.
        bound: a lower bound of the makespan that is known already, in the costs' unit.

    Raises:
        ValueError: OR-Tools is not installed.
    """
    if find_spec("ortools") is None:
        raise ValueError("the solver needs OR-Tools: install microp[plan], or search without it (solver_seconds=0)")
    from ortools.sat.python import cp_model

    unit, rounded = _unit(problem)

    def whole(time: Any) -> int:
        return round(Fraction(time) / unit)

    chunks, stages = problem.chunks, problem.stages
    times = [whole(time) for time in problem.times]
    hops = [whole(hop) for hop in problem.hops]
    starts = _hinted_starts(problem, hint, times, hops)
    horizon = max(start + time for start, time in zip(starts, times, strict=True))
    model: Any = cp_model.CpModel()
    begin = [model.new_int_var(0, horizon - time, "") for time in times]
    intervals = [model.new_fixed_size_interval_var(*each, "") for each in zip(begin, times, strict=True)]
    least = 0 if rounded else whole(bound)
    end = model.new_int_var(least, horizon, "makespan")
    for number, (start, time) in enumerate(zip(begin, times, strict=True)):
        lane, microbatch = divmod(number, chunks)
        source = problem.sources[lane]
        if source != NONE:
            sender = source * chunks + microbatch
            model.add(start >= begin[sender] + times[sender] + hops[lane])
        if lane >= stages:  # B after F, W after B
            model.add(start >= begin[number - stages * chunks] + times[number - stages * chunks])
        if microbatch:
            model.add(start >= begin[number - 1] + times[number - 1])
        if microbatch == chunks - 1:
            model.add(end >= start + time)
        model.add_hint(start, starts[number])
    model.add_hint(end, horizon)
    for lanes in problem.lanes:
        model.add_no_overlap([intervals[lane * chunks + m] for lane in lanes for m in range(chunks)])
    if problem.memory.cap is not None:
        _limit_memory(model, problem, begin, times, horizon)
    model.minimize(end)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    status = solver.solve(model)
    size = len(model.proto.variables), len(model.proto.constraints)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(None, False, None, solver.best_objective_bound * float(unit), rounded, solver.wall_time, size)
    order = [(solver.value(start), number) for number, start in enumerate(begin)]
    rows = [
        [n for _, n in sorted(e for e in order if problem.lane_rank[e[1] // chunks] == r)] for r in range(problem.ranks)
    ]
    return Solved(
        rows,
        status == cp_model.OPTIMAL,
        _scaled(round(solver.objective_value), unit),
        _scaled(round(solver.best_objective_bound), unit),
        rounded,
        solver.wall_time,
        size,
    )


def _limit_memory(model: Any, problem: Problem, begin: list[Any], times: list[int], horizon: int) -> None:
    """Add one cumulative per rank: what is held from F to B and from F to W never exceeds the cap."""
    memory, chunks, stages = problem.memory, problem.chunks, problem.stages
    scale = _unit_of([*memory.kept, *memory.pending])
    for own in problem.held:
        intervals, demands = [], []
        for stage in own:
            pending, rest = (
                round(Fraction(each) / scale)
                for each in (memory.pending[stage], memory.kept[stage] - memory.pending[stage])
            )
            for microbatch in range(chunks):
                first, backward, weight = ((op * stages + stage) * chunks + microbatch for op in range(3))
                for last, demand in ((backward, rest), (weight, pending)):
                    if demand:
                        length = model.new_int_var(0, horizon, "")
                        stop = begin[last] + times[last]
                        model.add(length == stop - begin[first])
                        intervals.append(model.new_interval_var(begin[first], length, stop, ""))
                        demands.append(demand)
        model.add_cumulative(intervals, demands, int(Fraction(memory.cap or 0) / scale))


def _hinted_starts(problem: Problem, rows: Rows, times: list[int], hops: list[int]) -> list[int]:
    """Return the starts of a hinted order with the solver's whole times."""
    copy = Problem(problem.placement, problem.chunks, problem.costs, problem.memory)
    copy.__dict__.update(times=times, hops=hops)
    ends = ends_of(copy, rows)
    assert ends is not None
    return [stop - time for stop, time in zip(ends, times, strict=True)]


def _unit(problem: Problem) -> tuple[Fraction, bool]:
    """Return the unit in which all times are small whole numbers, and whether they have to be rounded for it."""
    values = [value for value in (*problem.times, *problem.hops) if value]
    exact = _unit_of(values)
    mean = Fraction(sum(map(Fraction, problem.times))) / len(problem.times)
    if mean / exact <= 10 * RESOLUTION:
        return exact, False
    return mean / RESOLUTION, True


def _unit_of(values: list[Any]) -> Fraction:
    """Return the greatest common divisor of numbers as they are; 1 if there is none."""
    from math import gcd, lcm

    parts = [Fraction(value) for value in values if value]
    if not parts:
        return Fraction(1)
    below = lcm(*(part.denominator for part in parts))
    return Fraction(gcd(*(int(part * below) for part in parts)), below)


def _scaled(value: int, unit: Fraction) -> Any:
    scaled = value * unit
    return scaled.numerator if scaled.denominator == 1 else float(scaled)
