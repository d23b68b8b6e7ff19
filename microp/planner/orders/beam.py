"""Builds orders by a beam search: of all partial orders with equally many actions, the most promising are kept.

::

    0 actions    ·
    1            · ·           every choice on the rank whose next action could end first (Giffler and Thompson, 1960)
    2            · · · ·       the best `width` go on, one per counts of the lanes and clocks

A partial order is judged by a lower bound of the makespan of every order that begins with it, and then by the
idle time that it has used up so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from microp.planner.orders.bounds import tails_of
from microp.planner.orders.problem import Problem, Rows
from microp.planner.orders.state import State

Choice = tuple[int, Any]  # a lane, and when its next action starts


def search_beam(problem: Problem, width: int, until: float, window: int | None = None) -> Rows | None:
    """Return the best order of a beam search; None if it was not finished in time.

    Args:
        problem: the problem.
        width: the number of partial orders that are kept.
        until: when to give up, on the clock of `time.perf_counter`.
        window: the most microbatches that a rank works on; None: as many as the cap allows.
    """
    tails = tails_of(problem)
    beam = [State(problem)]
    for _ in problem.times:
        found: dict[Any, tuple[Any, State]] = {}
        for state in beam:
            if perf_counter() > until:
                return None
            for lane, start in _choices(problem, state, window or problem.chunks):
                after = state.copy()
                after.run(problem, lane, start)
                score = _score(problem, after, tails)
                key = tuple(after.count), tuple(after.clock)
                if key not in found or score < found[key][0]:
                    found[key] = score, after
        if not found:
            return None
        beam = [state for _, state in sorted(found.values(), key=lambda each: each[0])[:width]]
    return beam[0].finished()


def _choices(problem: Problem, state: State, window: int) -> Iterator[Choice]:
    """Yield what the rank whose next action could end first may do next: all that could start before that end."""
    first: tuple[Any, int] | None = None
    able: list[list[Choice]] = []
    for rank, lanes in enumerate(problem.lanes):
        newest = state.count[problem.stages + problem.held[rank][0]] + window
        own = [
            (lane, start)
            for lane in lanes
            if (lane >= problem.stages or state.count[lane] < newest)
            and (start := state.ready(problem, lane)) is not None
        ]
        able.append(own)
        for lane, start in own:
            end = start + problem.times[lane * problem.chunks + state.count[lane]]
            if first is None or end < first[0]:
                first = end, rank
    if first is not None:
        yield from (
            (lane, start) for lane, start in able[first[1]] if start < first[0] or start == state.clock[first[1]]
        )


def _score(problem: Problem, state: State, tails: list[Any]) -> tuple[Any, Any]:
    """Return a lower bound of the makespan, and the sum of the ranks' bounds."""
    stages, chunks = problem.stages, problem.chunks
    bound = total = 0
    for rank, lanes in enumerate(problem.lanes):
        own = state.clock[rank] + state.left[rank]
        for lane in lanes:
            missing = chunks - state.count[lane]
            if missing and lane < 2 * stages:
                start = state.clock[rank]
                if len(state.arrived[lane]) > state.count[lane]:
                    start = max(start, state.arrived[lane][state.count[lane]])
                number = lane * chunks + state.count[lane]
                bound = max(bound, start + missing * problem.times[number] + tails[lane])
        bound, total = max(bound, own), total + own
    return bound, total
