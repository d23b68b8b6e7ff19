"""Pairs in an order: a forward and the backward behind it as one action, where that makes the step shorter.

::

    rank 0   F0 F1 F2 B0 F3 B1 ...  ─►  F0 F1 (F2;B0) (F3;B1) ...      a pair takes less than both
    rank 1    .(F0;B0)              ✗   B0 needs F0: never a pair

A pair begins when the inputs of both are there and gives both outputs at its end, so one in the wrong place makes the
step longer. Each is tried by the price of the whole order: those of all ranks at once, those of one rank, and then one
by one. In 1F1B the backward behind a forward needs it on the last rank, so orders are also tried one forward later:

::

    F0 B0 F1 B1 F2 B2  ─►  F0 F1 B0 F2 B1 B2  ─►  F0 (F1;B0) (F2;B1) B2
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import pairwise
from math import inf
from time import perf_counter
from typing import Any

from microp.schedule import Action, Op, Schedule, validate
from microp.simulator import Costs, simulate
from microp.trace import makespan

FINE = 3  # orders, the best of whole ranks, whose pairs are tried one by one
_BACKWARDS = (Op.B, Op.I)


def paired(
    orders: Iterable[Schedule], costs: Costs, until: float, fits: Callable[[Schedule], bool] = lambda _: True
) -> tuple[Any, Schedule]:
    """Return the least makespan of some orders with pairs, and the order.

    Args:
        orders: valid ones; pairs that they have are kept where they make them shorter.
        costs: with the time of a pair.
        until: when to stop, on the clock of `time.perf_counter`, after pairs of whole ranks have been tried.
        fits: whether an order holds no more than it may.
    """
    bases = [order for each in orders for order in dict.fromkeys([each, _later(each)]) if order is each or fits(order)]
    # 1. the pairs of all ranks at once, and those of one
    tried = []
    for order in bases:
        rows = _pairs(order)
        tried.append(_best(order, costs, [[pair for row in rows for pair in row], *rows], inf))
    # 2. one by one
    fine = sorted(tried, key=lambda each: each[0])[:FINE]
    tried += [_best(order, costs, [[pair] for row in _pairs(order) for pair in row], until) for _, order in fine]
    return min(tried, key=lambda each: each[0])


def _pairs(schedule: Schedule) -> list[list[Action]]:
    """Return for each rank the forwards that may be a pair with the backward behind them."""
    return [
        [first for first, then in pairwise(row) if first.op is Op.F and then.op in _BACKWARDS] for row in schedule.ranks
    ]


def _best(schedule: Schedule, costs: Costs, changes: Iterable[list[Action]], until: float) -> tuple[Any, Schedule]:
    """Return the makespan and the order with the best pairs; equally good ones are taken, as others may need them."""
    best, kept = _time(schedule, schedule.pairs, costs), schedule.pairs
    for change in changes:
        for pairs in (kept.union(change), kept.difference(change)):
            if pairs == kept or perf_counter() > until:
                continue
            time = _time(schedule, pairs, costs)
            if time is not None and (time < best or (time == best and len(pairs) > len(kept))):
                best, kept = time, pairs
    return best, schedule if kept == schedule.pairs else replace(schedule, name="found", pairs=kept)


def _later(schedule: Schedule) -> Schedule:
    """Return the order with each forward that follows a backward before it, as far as that is an order."""
    ranks = []
    for row in schedule.ranks:
        moved = list(row)
        for at, (first, then) in enumerate(pairwise(row)):
            if first.op in _BACKWARDS and then.op is Op.F:
                moved[at : at + 2] = [then, first]
        ranks.append(tuple(moved))
    other = replace(schedule, name="found", ranks=tuple(ranks), pairs=frozenset())
    return other if other.ranks != schedule.ranks and _valid(other) else schedule


def _valid(schedule: Schedule) -> bool:
    try:
        return bool(validate(schedule))
    except ValueError:
        return False


def _time(schedule: Schedule, pairs: Collection[Action], costs: Costs) -> Any | None:
    """Return the makespan of an order with these pairs, or None if it is no order: a pair needs itself."""
    with_pairs = replace(schedule, pairs=frozenset(pairs))
    return makespan(simulate(with_pairs, costs)) if _valid(with_pairs) else None
