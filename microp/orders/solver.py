"""Solves small problems with OR-Tools' CP-SAT, with the search's order as a hint.

::

    one interval per action ── no overlap on a rank, with the hop and the overhead that keep it busy
    start(F s,m) >= end(F s-1,m) + hop, and so on      the dependencies
    start(F s,m+1) >= end(F s,m), and so on            microbatches of a kind are alike, so each lane has them in order
    size(I) = full, no W   or   size(I) = b, a W       where a full backward takes less than I and W
    [start F, end W]  at most the cap of them at any time: one cumulative per rank
    one interval per message ── no overlap on a link   if messages queue

Every order is a solution that ends no later than `simulate` says, so the solver's bound is one of that price. Times of
many digits are rounded down to `RESOLUTION` parts of the mean action, and messages of different lanes may overtake each
other on a link: then the bound may be below the price of the best order. Only an order whose price reaches the bound is
the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from math import ceil, floor, gcd, lcm
from typing import Any

from microp.orders.problem import NONE, Problem, Rows, Timing, ends_of
from microp.simulator import ratio

RESOLUTION = 1000  # parts of the mean action, if costs have to be rounded
DIGITS = 12  # of a float that count: 0.1 is a tenth


@dataclass(frozen=True)
class Solved:
    """The solver's answer."""

    rows: Rows | None  # the best order that it found; None if it found none
    bound: Any  # a lower bound of the price of any order, in the costs' unit
    rounded: bool  # whether the costs had to be rounded down for it
    seconds: float
    size: tuple[int, int]  # the number of variables and constraints
    makespan: Any = None  # the price of its order; None if it has none that ends within the cap


def solve(problem: Problem, hint: Rows, seconds: float, workers: int = 2, bound: Any = 0) -> Solved:
    """Return the best order that CP-SAT finds, not priced.

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
    model = _Model(problem, Timing(*([floor(_exact(time) / unit) for time in times] for times in problem.timing)))
    model.minimize(problem.normal(hint), floor(_exact(bound) / unit))
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    status = solver.solve(model.model)
    size = len(model.model.proto.variables), len(model.model.proto.constraints)
    known = max(solver.best_objective_bound, model.least)
    least = ratio(ceil(known - 1e-6) * unit, 1)  # the objective is a whole number
    is_solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Solved(model.rows(solver) if is_solved else None, least, rounded, solver.wall_time, size)


class _Model:
    """The problem in the solver's terms."""

    def __init__(self, problem: Problem, timing: Timing) -> None:
        from ortools.sat.python import cp_model

        self.model: Any = cp_model.CpModel()
        self._problem, self._timing = problem, timing
        self._pairs = problem.stages * problem.units
        self._latest = sum(timing.takes) + sum(timing.after) + sum(timing.hops)
        self.least = 0
        self._end = self.model.new_int_var(0, self._latest, "makespan")
        self._begin = [self.model.new_int_var(0, self._latest, "") for _ in range(problem.count)]
        self._divided = {  # number of an I -> whether it has a W
            number: self.model.new_bool_var("")
            for stage, joins in enumerate(problem.joins)
            for number in range(self._pairs + stage * problem.units, self._pairs + (stage + 1) * problem.units)
            if joins
        }
        self._ends = [self._end_of(number) for number in range(problem.count)]
        for number in range(problem.count):
            self._constrain(number)
        for lanes in problem.lanes:
            numbers = [lane * problem.units + m for lane in lanes for m in range(problem.units)]
            self.model.add_no_overlap([self._busy(number) for number in numbers])
        if problem.link.queues:
            self._queue()
        if problem.cap is not None:
            self._limit_memory()

    def minimize(self, hint: Rows, least: int) -> None:
        """Ask for the earliest end, from `least` to that of a hinted order, with that order's starts as a hint."""
        problem, model = self._problem, self.model
        ends = ends_of(problem, hint, self._timing)
        assert ends is not None
        last = max(least, *(ends[row[-1]] for row in hint))
        self.least = least
        model.add(self._end >= least)
        model.add(self._end <= last)
        model.add_hint(self._end, last)
        for number in (each for row in hint for each in row):
            own = problem.place(number)
            model.add_hint(self._begin[own], ends[number] - self._timing.takes[number])
            if own in self._divided:
                model.add_hint(self._divided[own], number == own)
        model.minimize(self._end)

    def rows(self, solver: Any) -> Rows:
        """Return the solution's order."""
        problem, pairs = self._problem, self._pairs
        whole = {number for number, divided in self._divided.items() if not solver.value(divided)}
        lanes = ((number, *divmod(number, problem.units)) for number in range(problem.count))
        order = [
            (
                solver.value(self._begin[number]),
                solver.value(self._ends[number]),
                lane,
                problem.turn(lane, unit),
                number,
            )
            for number, lane, unit in lanes
            if number - pairs not in whole
        ]
        rows: Rows = [[] for _ in range(problem.ranks)]
        for *_, number in sorted(order):
            rows[problem.lane_rank[number // problem.units]].append(number + 2 * pairs * (number in whole))
        return rows

    def _end_of(self, number: int) -> Any:
        """Return when an action ends."""
        if number not in self._divided:
            return self._begin[number] + self._timing.takes[number]
        stop = self.model.new_int_var(0, self._latest, "")
        self.model.add(stop == self._begin[number] + self._takes(number))
        return stop

    def _takes(self, number: int) -> Any:
        """Return how long an action takes: of an I that may be a B it depends on that."""
        takes = self._timing.takes
        if number not in self._divided:
            return takes[number]
        full = takes[number + 2 * self._pairs]
        return full + (takes[number] - full) * self._divided[number]

    def _busy(self, number: int) -> Any:
        """Return the interval in which an action keeps its rank busy."""
        after = self._timing.after[number]
        times = self._begin[number], self._takes(number) + after, self._ends[number] + after
        return self.model.new_optional_interval_var(*times, self._is_there(number), "")

    def _is_there(self, number: int) -> Any:
        return self._divided.get(number - self._pairs, True)

    def _constrain(self, number: int) -> None:
        """Put an action after those that it needs, and after the one of the unit before that is alike."""
        problem, model, begin = self._problem, self.model, self._begin[number]
        lane, unit = divmod(number, problem.units)
        source, beside = problem.sources[lane], problem.beside(number)
        if source != NONE:
            model.add(begin >= self._ends[source * problem.units + unit] + self._timing.hops[number])
        if beside != NONE:
            model.add(begin >= self._ends[beside])
        if lane >= problem.stages:  # I after F, W after I
            model.add(begin >= self._ends[number - self._pairs])
        model.add(self._end >= self._ends[number]).only_enforce_if(self._is_there(number))
        before = self._before(number)
        if before is not None:
            is_there = self._is_there(number), self._is_there(before)
            model.add(begin >= self._ends[before]).only_enforce_if(is_there)

    def _before(self, number: int) -> int | None:
        """Return the action of the unit before, of those of its kind, in the same lane."""
        first, kinds = number - number % self._problem.units, self._problem.kinds
        alike = (each for each in range(number - 1, first - 1, -1) if kinds[each - first] == kinds[number - first])
        return next(alike, None)

    def _queue(self) -> None:
        """Let the messages of each direction of a link travel one after the other."""
        problem, model = self._problem, self.model
        travels: dict[int, list[Any]] = {}
        sent: dict[int, Any] = {}
        for number in range(2 * self._pairs):
            lane, unit = divmod(number, problem.units)
            if (link := problem.links[lane]) == NONE:
                continue
            taker = problem.takers[lane] * problem.units + unit
            hop = self._timing.hops[taker]
            sent[number] = start = model.new_int_var(0, self._latest, "")
            model.add(start >= self._ends[number])
            model.add(self._begin[taker] >= start + hop)
            if (before := self._before(number)) is not None:
                model.add(start >= sent[before] + hop)
            travels.setdefault(link, []).append(model.new_fixed_size_interval_var(start, hop, ""))
        for intervals in travels.values():
            model.add_no_overlap(intervals)

    def _limit_memory(self) -> None:
        """Add one cumulative per rank: what is held from F to W, or to the B in its place, never exceeds the cap."""
        problem, model, pairs = self._problem, self.model, self._pairs
        for own in problem.held:
            intervals = []
            for first in (
                number for stage in own for number in range(stage * problem.units, (stage + 1) * problem.units)
            ):
                last, (length, stop) = first + 2 * pairs, (model.new_int_var(0, self._latest, "") for _ in range(2))
                there = self._is_there(last)
                model.add(stop == self._ends[last]).only_enforce_if(there)
                if there is not True:
                    model.add(stop == self._ends[last - pairs]).only_enforce_if(there.negated())
                intervals.append(model.new_interval_var(self._begin[first], length, stop, ""))
            model.add_cumulative(intervals, [1] * len(intervals), problem.cap)


def _exact(value: Any) -> Fraction:
    """Return a time as a fraction; of a float the digits that were meant."""
    return Fraction(f"{value:.{DIGITS}g}") if isinstance(value, float) else Fraction(value)


def _unit(problem: Problem) -> tuple[Fraction, bool]:
    """Return the unit in which all times are small whole numbers, and whether they have to be rounded for it."""
    exact = _unit_of([time for times in problem.timing for time in times])
    mean = sum(map(_exact, problem.timing.takes), Fraction(0)) / len(problem.timing.takes)
    if mean / exact <= 10 * RESOLUTION:
        return exact, False
    return mean / RESOLUTION, True


def _unit_of(values: list[Any]) -> Fraction:
    """Return the greatest common divisor of numbers as they are; 1 if there is none."""
    parts = [_exact(value) for value in values if value]
    if not parts:
        return Fraction(1)
    below = lcm(*(part.denominator for part in parts))
    return Fraction(gcd(*(int(part * below) for part in parts)), below)
