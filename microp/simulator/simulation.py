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

from array import array
from collections.abc import Callable, Generator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from microp.schedule import Action, Schedule
from microp.simulator.costs import Costs
from microp.simulator.link_model import Asynchronous, LinkModel, Moment, later
from microp.simulator.lowered import NONE, SMALL, Lowered, lower, refuse, with_times
from microp.trace import Actions, Column, Span, Spans, column_type

UNKNOWN = -1  # the end of an action that has not run
_GROWING: dict[type, Callable[[], Any]] = {  # type of a column -> an empty list; an array has no object per number
    np.int64: lambda: array("q"),
    np.float64: lambda: array("d"),
    object: list,
}


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
        takes: the time of every action; None if the costs have it.
        hops: beside `takes`, the time of the hop of an action's input, for actions where the costs do not have it; of
            asynchronous hops.

    Raises:
        ValueError: the costs are for another number of stages than the schedule has, or the
            schedule deadlocks or lacks an action.
    """
    lowered = lower(schedule, costs)
    if takes is not None:
        lowered = with_times(lowered, takes, hops or {})
    times = [*lowered.kinds.takes, *lowered.kinds.hop_in, *lowered.kinds.after]
    dtype = column_type(times, bound=3 * len(lowered.actions) * max(times))
    walk = _delayed if type(costs.transfer) in (Asynchronous, LinkModel) else _queued
    found = walk(lowered, costs.transfer, dtype)
    if isinstance(found, int):
        refuse(schedule)
    return Simulated(lowered.actions, found.free, found.start, found.end, found.cause)


def critical_path(spans: Simulated) -> list[Span]:
    """Return the spans from a first start to the last end, each the cause of the next one's start.

    The next span starts at the end of the one before, or a hop later, or several hops later if
    messages queue.
    """
    path = [int(np.argmax(spans.end))]
    while (cause := int(spans.cause[path[-1]])) != NONE:
        path.append(cause)
    return [spans[position] for position in reversed(path)]


class _Times(NamedTuple):
    """Columns with the times of every action."""

    free: Column
    start: Column
    end: Column
    cause: Column


# --- a pure delay ----------------------------------------------------------------------------------


def _delayed(lowered: Lowered, transfer: LinkModel, dtype: type) -> _Times | int:
    """Return the times if a hop is a pure delay, or the position of a sender that is waited for in vain."""
    del transfer
    ends = _ends(lowered, dtype)
    if isinstance(ends, int):
        return ends
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
    return _Times(free, start, start + takes[lowered.kind], np.where(is_later, source, before))


def _ends(lowered: Lowered, dtype: type) -> Column | int:
    """Return the end of every action, or the position of a sender that is waited for in vain.

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
    waiting: dict[int, int] = {}  # sender's position -> the row that waits for it
    runnable = list(range(len(first)))
    while runnable:
        row = runnable.pop()
        now, sender = free[row], NONE
        for position in range(reached[row], stops[row]):
            sender, of_kind = source[position], kind[position]
            if sender >= 0:
                there = ends[sender]
                if there < 0:
                    waiting[sender] = row
                    reached[row], free[row] = position, now
                    break
                there += hops[of_kind]
                if there > now:
                    now = there
            ends[position] = now + takes[of_kind]
            now = now + whole[of_kind]
            if position in waiting:
                runnable.append(waiting.pop(position))
    if waiting:
        return next(iter(waiting))
    return np.array(ends, dtype) if isinstance(ends, list) else np.asarray(ends)


# --- the other rules -------------------------------------------------------------------------------


def _queued(lowered: Lowered, transfer: LinkModel, dtype: type) -> _Times | int:
    """Return the times by any rule, or the position of a sender that is waited for in vain."""
    clocks = _Clocks(lowered, transfer, dtype)
    stuck = clocks.run()
    if stuck is not None:
        return stuck
    start, free = (np.concatenate([np.asarray(e, dtype) for e in each]) for each in (clocks.starts, clocks.frees))
    takes: Column = np.array(lowered.kinds.takes, dtype)
    return _Times(free, start, start + takes[lowered.kind], np.concatenate(clocks.causes))


class _Clocks:
    """The ranks' clocks; each rank runs its row on its own.

    Attributes:
        starts: for each rank, the start of each action.
        frees: for each rank and action, the moment from which the rank had nothing else to do.
        causes: for each rank and action, the position of the action that caused its start.
    """

    def __init__(self, lowered: Lowered, transfer: LinkModel, dtype: type) -> None:
        first = lowered.actions.first.tolist()
        new = _GROWING[dtype]
        self.starts = [new() for _ in first]
        self.frees = [new() for _ in first]
        self.causes = [array("i") for _ in first]
        self._lowered, self._transfer = lowered, transfer
        self._mail: dict[int, Moment] = {}  # sender's position -> when its message arrives
        self._waiting: dict[int, Generator[int]] = {}  # sender's position -> the walk that waits for it
        edges = pairwise((*first, len(lowered.actions)))
        self._runnable = [self._walk(row, range(*edge)) for row, edge in enumerate(edges)]

    def run(self) -> int | None:
        """Run all ranks until none can continue; return the position of a sender that is still waited for, or None."""
        while self._runnable:
            walk = self._runnable.pop()
            sender = next(walk, None)
            if sender is not None:
                self._waiting[sender] = walk
        return next(iter(self._waiting), None)

    def _walk(self, row: int, positions: range) -> Generator[int]:
        """Run one rank's actions in order; yield a sender's position when its message has to be waited for."""
        starts, frees, causes = self.starts[row], self.frees[row], self.causes[row]
        mail, waiting, send, receive = self._mail, self._waiting, self._transfer.send, self._transfer.receive
        part = slice(positions.start, positions.stop)
        senders = self._lowered.source.data[part]
        table = list(zip(*self._lowered.kinds, strict=True))
        kinds = map(table.__getitem__, self._lowered.kind.data[part])
        free = outset = (0, NONE)
        idle: dict[int, Moment] = {}  # peer -> when the last message sent to it arrives
        for position, sender, (takes, hop_in, peer, hop_out, after) in zip(positions, senders, kinds, strict=True):
            start, cause = free
            if sender != NONE:
                if sender not in mail:
                    yield sender
                there = receive(free, mail.pop(sender), hop_in)
                if there > free:
                    start, cause = there
            frees.append(free[0])
            starts.append(start)
            causes.append(cause)
            free = start + takes, position
            if peer != NONE:
                free, there = send(free, idle.get(peer, outset), hop_out)
                mail[position] = idle[peer] = there
                if position in waiting:
                    self._runnable.append(waiting.pop(position))
            if after:
                free = later(free, after)
