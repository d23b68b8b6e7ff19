"""Simulates a schedule: computes the span of each action from the times in `Costs`.

::

    rank 0   free ► F0 ► free ► F1 ► ...       a rank runs its row in order:
                     ╰─ hop ─╮                 start = max(free, there)
    rank 1   free ───► there ► F0 ► free ► ... end = start + the action's time

The `max` that gives a start also gives the start's cause. The causes, followed back from the last
end, are the critical path. `link_model` has the rules for the times of a hop. The simulation takes
one pass, linear in the number of actions; integers and Fractions stay exact.

A hop of a pure delay, the usual rule, needs only the ends of the actions: one loop over numbers, and
columns for all else. Under the other rules a rank or a link may be busy with a message, so that each
time is kept with the position of the action that caused it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Action, Schedule
from microp.simulator.costs import Costs
from microp.simulator.link_model import LinkModel, Moment, later
from microp.simulator.lowered import NONE, SMALL, Lowered, lower, refuse, with_pairs, with_times
from microp.trace import Actions, Column, Span, Spans, column_type

UNKNOWN = -1  # the end of an action that has not run
Floats = NDArray[np.float64]


class Simulated(Spans):
    """Simulated spans, with the cause of each start.

    Attributes:
        cause: for each span, the position of the span that kept it from starting earlier, or
            `NONE`. That span ran before it on the same rank, or sent its message; if messages
            queue, it sent the first message of the queue, which found the link idle.
    """

    def __init__(self, actions: Actions, wait_start: Column, start: Column, end: Column, cause: Column) -> None:
        super().__init__(actions, wait_start, start, start, end)  # an action starts as soon as it is ready
        self.cause = cause


def simulate(
    schedule: Schedule,
    costs: Costs,
    takes: Mapping[Action, Any] | None = None,
    hops: Mapping[Action, Any] | None = None,
) -> Simulated:
    """Return the spans of one step, from time 0, rank by rank, in the costs' unit of time.

    Args:
        takes: the time of every action, of which a pair takes the sum; None if the costs have it.
        hops: beside `takes`, the time of the hop of an action's input, for actions where the costs do not have it; of
            asynchronous hops.

    Raises:
        ValueError: the costs are for another number of stages than the schedule has, or the
            schedule deadlocks or lacks an action.
    """
    lowered = lower(schedule, costs)
    if takes is not None:
        lowered = with_times(lowered, takes, hops or {})
    parts: dict[int, Any] = {}
    if schedule.pairs and (costs.pair or takes is not None):
        lowered, parts = with_pairs(lowered, schedule, costs if takes is None else None)
    times = [*lowered.kinds.takes, *parts.values(), *lowered.kinds.hop_in, *lowered.kinds.after]
    dtype = column_type(times, bound=3 * len(lowered.actions) * max(times))
    walk = _delayed if type(costs.transfer) is LinkModel else _queued
    spans = walk(lowered, costs.transfer, dtype)
    return refuse(schedule) if spans is None else _divided(spans, parts) if parts else spans


def _divided(spans: Simulated, parts: Mapping[int, Any]) -> Simulated:
    """Return the spans in which the forwards of pairs, which took no time, have their part of the pair's time."""
    first = np.array([*parts])
    started = spans.start[first + 1]
    is_later = spans.cause[first + 1] != first  # the pair waited for the input of its backward
    spans.cause[first] = np.where(is_later, spans.cause[first + 1], spans.cause[first])
    ends = started + np.array([*parts.values()], spans.end.dtype)
    wait_start, start, end, cause = spans.wait_start.copy(), spans.start.copy(), spans.end.copy(), spans.cause
    start[first], end[first] = started, ends
    wait_start[first + 1], start[first + 1], cause[first + 1] = ends, ends, first
    return Simulated(spans, wait_start, start, end, cause)


def critical_path(spans: Simulated) -> list[Span]:
    """Return the spans from a first start to the last end, each the cause of the next one's start.

    The next span starts at the end of the one before, or a hop later, or several hops later if
    messages queue.
    """
    path = [int(np.argmax(spans.end))]
    while (cause := int(spans.cause[path[-1]])) != NONE:
        path.append(cause)
    return [spans[position] for position in reversed(path)]


# --- a pure delay ----------------------------------------------------------------------------------


def _delayed(lowered: Lowered, _: LinkModel, dtype: type) -> Simulated | None:
    """Return the spans if a hop is a pure delay, or None if a message is waited for in vain."""
    ends = _ends(lowered, dtype)
    if ends is None:
        return None
    first, source = lowered.actions.first, lowered.source
    before = np.arange(-1, len(ends) - 1, dtype=np.int32)
    before[first] = NONE
    free = np.empty_like(ends)
    free[1:] = ends[:-1]
    if any(lowered.kinds.after):
        free[1:] += np.array(lowered.kinds.after, dtype)[lowered.kind[:-1]]
    free[first] = 0
    hops: Column = np.array(lowered.kinds.hop_in, dtype)
    takes: Column = np.array(lowered.kinds.takes, dtype)
    there = np.where(source == NONE, 0, ends[source] + hops[lowered.kind])
    is_later = (there > free) | ((there == free) & (source > before))  # of two causes the later position
    start = np.where(is_later, there, free)
    end, cause = start + takes[lowered.kind], np.where(is_later, source, before)
    return Simulated(lowered.actions, free, start, end, cause)


def _ends(lowered: Lowered, dtype: type) -> Column | None:
    """Return the end of every action, or None if a message is waited for in vain.

    Each rank runs its row until it needs a message of an action that has not run, and goes on when that has.
    """
    count, first = len(lowered.actions), lowered.actions.first.tolist()
    takes, hops, _, _, after = lowered.kinds
    whole = [time + more for time, more in zip(takes, after, strict=True)]
    if count <= SMALL:
        ends: Any = [UNKNOWN] * count
        source, kind = lowered.source.tolist(), lowered.kind.tolist()
    else:
        ends = np.full(count, UNKNOWN, dtype)
        source, kind = lowered.source.data, lowered.kind.data
        ends = ends.data if dtype is not object else ends.tolist()
    free: list[Any] = [0] * len(first)
    reached, stops = list(first), [*first[1:], count]
    waiting: dict[int, list[int]] = {}  # sender's position -> the rows that wait for it; two, if it ends a pair
    runnable = list(range(len(first)))
    while runnable:
        row = runnable.pop()
        now, sender = free[row], NONE
        for position in range(reached[row], stops[row]):
            sender, of_kind = source[position], kind[position]
            if sender >= 0:
                there = ends[sender]
                if there < 0:
                    waiting.setdefault(sender, []).append(row)
                    reached[row], free[row] = position, now
                    break
                there += hops[of_kind]
                if there > now:
                    now = there
            ends[position] = now + takes[of_kind]
            now = now + whole[of_kind]
            if position in waiting:
                runnable += waiting.pop(position)
    if waiting:
        return None
    return np.array(ends, dtype) if isinstance(ends, list) else np.asarray(ends)


# --- the other rules -------------------------------------------------------------------------------


def _queued(lowered: Lowered, transfer: LinkModel, dtype: type) -> Simulated | None:
    """Return the spans by any rule, or None if a message is waited for in vain."""
    source, kind, table = lowered.source.tolist(), lowered.kind.tolist(), list(zip(*lowered.kinds, strict=True))
    empty: list[Any] = [None] * len(source)
    frees, starts, causes = empty[:], empty[:], empty[:]
    mail: dict[int, Moment] = {}  # sender's position -> when its message arrives
    waiting: dict[int, Generator[int]] = {}  # sender's position -> the walk that waits for it

    def walk(positions: range) -> Generator[int]:
        """Run one rank's actions in order; yield a sender's position when its message has to be waited for."""
        free = outset = (0, NONE)
        idle: dict[int, Moment] = {}  # peer -> when the last message sent to it arrives
        for position in positions:
            takes, hop_in, peer, hop_out, after = table[kind[position]]
            start, cause = free
            if (sender := source[position]) != NONE:
                if sender not in mail:
                    yield sender
                there = transfer.receive(free, mail.pop(sender), hop_in)
                if there > free:
                    start, cause = there
            frees[position], starts[position], causes[position] = free[0], start, cause
            free = start + takes, position
            if peer != NONE:
                free, there = transfer.send(free, idle.get(peer, outset), hop_out)
                mail[position] = idle[peer] = there
                if position in waiting:
                    runnable.append(waiting.pop(position))
            if after:
                free = later(free, after)

    runnable = [walk(range(*edge)) for edge in pairwise((*lowered.actions.first.tolist(), len(source)))]
    while runnable:
        row = runnable.pop()
        if (sender := next(row, None)) is not None:
            waiting[sender] = row
    if waiting:
        return None
    start: Column = np.array(starts, dtype)
    takes: Column = np.array(lowered.kinds.takes, dtype)
    end, cause = start + takes[lowered.kind], np.array(causes, np.int32)
    return Simulated(lowered.actions, np.array(frees, dtype), start, end, cause)


# --- many costs at once ----------------------------------------------------------------------------


def step_times(schedule: Schedule, costs: Costs) -> Floats:
    """Return the time of a step, with the sums over the replicas or copies, under each of the costs.

    ::

        forward      [[5, 6, 4], [5, 4, 6]]    per stage a column: one number for each of three costs
        end of 0F0    [5, 6, 4]                 so is the end of every action

    Args:
        schedule: a valid order.
        costs: with a column as the value of a stage where a plain `Costs` has a number; hops are pure delays.
    """
    costs = replace(costs, shares=tuple(map(float, costs.shares)))  # a column times a fraction is one of objects
    clocks, ends = _ends_of_many(schedule, lower(schedule, costs))
    if costs.reduction:
        positions = {action: position for position, (_, action) in enumerate(schedule)}
        last = list(clocks)
        for rank in range(len(schedule.ranks)):
            stages = [stage for stage in schedule.stages_of(rank) if stage in schedule.last_gradients]
            made = np.array([ends[positions[schedule.last_gradients[stage]]] for stage in stages])
            if schedule.copies > 1:
                made = np.array([reduce(np.maximum, [last[at] for at in schedule.holders(stage)]) for stage in stages])
            clocks.append(_sums_end(made, np.array([costs.reduction[stage] for stage in stages])))
    step: Floats = np.max(np.broadcast_arrays(*clocks), axis=0)
    return step


def _ends_of_many(schedule: Schedule, lowered: Lowered) -> tuple[list[Any], list[Any]]:
    """Return the end of each rank's last action, and of every action; as `_ends`, with a column for each number."""
    takes, hops, _, _, after = lowered.kinds
    source, kind, rank = lowered.source.tolist(), lowered.kind.tolist(), lowered.actions.rank.tolist()
    ones = (1,) * schedule.stages
    times_of_one = simulate(schedule, Costs(ones, ones, ones))  # in the order of which no action comes before a parent
    free, ends = list[Any]([0.0]) * len(schedule.ranks), list[Any]([0.0]) * len(source)
    for position in np.argsort(times_of_one.end, kind="stable").tolist():
        sender, of_kind, row = source[position], kind[position], rank[position]
        start = free[row] if sender == NONE else np.maximum(free[row], ends[sender] + hops[of_kind])
        ends[position] = start + takes[of_kind]
        free[row] = ends[position] + after[of_kind]
    return [ends[stop - 1] for stop in (*lowered.actions.first[1:], len(source))], ends


def _sums_end(made: Floats, times: Floats) -> Any:
    """Return when a rank has ended the sums of its stages, one after the other in the order of their last gradients."""
    order = np.argsort(made, axis=0, kind="stable")
    free: Any = 0.0
    for start, time in zip(np.take_along_axis(made, order, 0), np.take_along_axis(times, order, 0), strict=True):
        free = np.maximum(free, start) + time
    return free
