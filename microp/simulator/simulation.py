"""Simulates a schedule: computes the span of each action from the times in `Costs`.

::

    rank 0   free ► F0 ► free ► F1 ► ...       a rank runs its row in order:
                     ╰─ hop ─╮                 start = max(free, there)
    rank 1   free ───► there ► F0 ► free ► ... end = start + the action's time

Every time is kept with the position of the action that caused it, so that the `max` that gives a
start also gives the start's cause. The causes, followed back from the last end, are the critical
path. `link_model` has the rules for the times of a hop. The simulation takes one pass, linear in
the number of actions; integers and Fractions stay exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Any

import numpy as np

from microp.schedule import Schedule
from microp.simulator.costs import Costs
from microp.simulator.link_model import LinkModel, Moment
from microp.simulator.lowered import NONE, Lowered, lower
from microp.trace import Actions, Column, Span, Spans, column_type

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


def simulate(schedule: Schedule, costs: Costs) -> Simulated:
    """Return the spans of one step, from time 0, rank by rank, in the costs' unit of time.

    Raises:
        ValueError: the costs are for another number of stages than the schedule has, or the
            schedule deadlocks or lacks an action.
    """
    lowered = lower(schedule, costs)
    actions, kind, kinds = lowered.actions, lowered.kind, lowered.kinds
    times = [time for each in kinds for time in (each.takes, each.hop_in)]
    dtype = column_type(times, bound=2 * len(actions) * max(times))
    clocks = _Clocks(lowered, costs.transfer, dtype)
    stuck = clocks.run()
    if stuck is not None:
        raise ValueError(
            f"schedule {schedule.name!r} deadlocks at {actions.at(stuck)}: microp.schedule.validate names the cycle"
        )
    start = np.concatenate([np.asarray(starts, dtype) for starts in clocks.starts])
    end = start + np.array([each.takes for each in kinds], dtype)[kind]
    wait_start = np.concatenate([np.asarray(frees, dtype) for frees in clocks.frees])
    return Simulated(actions, wait_start, start, end, np.concatenate(clocks.causes))


def critical_path(spans: Simulated) -> list[Span]:
    """Return the spans from a first start to the last end, each the cause of the next one's start.

    The next span starts at the end of the one before, or a hop later, or several hops later if
    messages queue.
    """
    path = [int(np.argmax(spans.end))]
    while (cause := int(spans.cause[path[-1]])) != NONE:
        path.append(cause)
    return [spans[position] for position in reversed(path)]


class _Clocks:
    """The ranks' clocks; each rank runs its row on its own.

    Args:
        lowered: the actions and their times.
        transfer: the rule for the times of a hop.
        dtype: the type of a column that holds the times.

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
        kinds = map(self._lowered.kinds.__getitem__, self._lowered.kind.data[part])
        free = outset = (0, NONE)
        idle: dict[int, Moment] = {}  # peer -> when the last message sent to it arrives
        for position, sender, (takes, hop_in, peer, hop_out) in zip(positions, senders, kinds, strict=True):
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
