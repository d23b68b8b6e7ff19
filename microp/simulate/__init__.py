"""Prices a schedule: what would each action's span be, if actions took what `Costs` says?

::

    rank 0   free ► F0 ► free ► F1 ► ...       a rank walks its row and never looks ahead:
                     ╰─ hop ─╮                 start = max(free, there)
    rank 1   free ───► there ► F0 ► free ► ... end = start + what it takes

Times travel with the position of the action that made them no earlier, so that the `max`
that finds a start finds its cause as well: causes, followed back, are the critical path. How
a hop is charged is a rule of `transfer.py`. One pass, linear in the number of actions;
integers and Fractions stay exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import Any

import numpy as np

from microp.costs import Costs
from microp.program import NONE, Program, compile_program
from microp.schedule import Schedule
from microp.trace import Actions, Column, Span, Spans, column_type
from microp.transfer import Moment, Transfer

_GROWING: dict[type, Callable[[], Any]] = {  # what takes numbers one by one: as columns do, without an object each
    np.int64: lambda: array("q"),
    np.float64: lambda: array("d"),
    object: list,
}


class Simulated(Spans):
    """Spans that know their reasons.

    Attributes:
        cause: for each span the position of the one that kept it from starting earlier, or
            `NONE`. That one ran before it on the same rank, or sent its message; where
            messages queue, it sent the message that found the link idle.
    """

    def __init__(self, actions: Actions, start: Column, end: Column, ready: Column, cause: Column) -> None:
        super().__init__(actions, start, end, ready)
        self.cause = cause


def simulate(schedule: Schedule, costs: Costs) -> Simulated:
    """The spans of one step, from time 0, rank by rank.

    Raises:
        ValueError: the costs name another number of stages than the schedule has; or the
            schedule deadlocks, or lacks an action.
    """
    program = compile_program(schedule, costs)
    actions, before, source, kind, kinds = program
    times = [time for each in kinds for time in (each.takes, each.lead, each.hop_in)]
    dtype = column_type(times, bound=2 * len(actions) * max(times))
    clocks = _Clocks(program, costs.transfer, dtype)
    stuck = clocks.run()
    if stuck is not None:
        raise ValueError(f"schedule {schedule.name!r} deadlocks at {actions.at(stuck)}: validate() names the cycle")
    start = np.concatenate([np.asarray(starts, dtype) for starts in clocks.starts])
    end = start + np.array([each.takes for each in kinds], dtype)[kind]
    ready: Column = np.where(before == NONE, 0, end[before]).astype(dtype)
    ready[source != NONE] = np.concatenate([np.asarray(arrivals, dtype) for arrivals in clocks.arrivals])
    return Simulated(actions, start, end, ready, np.concatenate(clocks.causes))


def critical_path(spans: Simulated) -> list[Span]:
    """From a first start to the last end, each span the reason for the next one's start.

    Between the end of one and the start of the next lies nothing, or a hop: more than one
    where messages queue, and less where recomputation began before its message came.
    """
    path = [int(np.argmax(spans.end))]
    while (cause := int(spans.cause[path[-1]])) != NONE:
        path.append(cause)
    return [spans[position] for position in reversed(path)]


class _Clocks:
    """The ranks, each walking its row on its own clock.

    Args:
        program: what they do.
        transfer: how a hop is charged.
        dtype: the type of a column that holds the times.

    Attributes:
        starts: for each rank the start of each action.
        arrivals: for each rank when each message was there.
        causes: for each rank the position of what kept each action from starting earlier.
    """

    def __init__(self, program: Program, transfer: Transfer, dtype: type) -> None:
        first = program.actions.first.tolist()
        new = _GROWING[dtype]
        self.starts = [new() for _ in first]
        self.arrivals = [new() for _ in first]
        self.causes = [array("i") for _ in first]
        self._program, self._transfer = program, transfer
        self._mail: dict[int, Moment] = {}  # sender's position -> when its message is there
        self._waiting: dict[int, Generator[int]] = {}  # sender's position -> the walk that waits for it
        edges = pairwise((*first, len(program.actions)))
        self._runnable = [self._walk(row, range(*edge)) for row, edge in enumerate(edges)]

    def run(self) -> int | None:
        """Let all walk until none can; if some have not come to their end, the position of what one waits for."""
        while self._runnable:
            walk = self._runnable.pop()
            sender = next(walk, None)
            if sender is not None:
                self._waiting[sender] = walk
        return next(iter(self._waiting), None)

    def _walk(self, row: int, positions: range) -> Generator[int]:
        """One rank's actions in order; gives a sender's position when it must wait for its message."""
        starts, arrivals, causes = self.starts[row], self.arrivals[row], self.causes[row]
        mail, waiting, send, receive = self._mail, self._waiting, self._transfer.send, self._transfer.receive
        part = slice(positions.start, positions.stop)
        senders = self._program.source.data[part]
        kinds = map(self._program.kinds.__getitem__, self._program.kind.data[part])
        free = outset = (0, NONE)
        idle: dict[int, Moment] = {}  # peer -> when the link to it has carried all messages so far
        for position, sender, (takes, lead, hop_in, peer, hop_out) in zip(positions, senders, kinds, strict=True):
            start, cause = free
            if sender != NONE:
                if sender not in mail:
                    yield sender
                asked = start + lead, cause
                there = receive(asked, mail.pop(sender), hop_in)
                arrivals.append(there[0])
                if there > asked:
                    start, cause = there[0] - lead, there[1]
            starts.append(start)
            causes.append(cause)
            free = start + takes, position
            if peer != NONE:
                free, there = send(free, idle.get(peer, outset), hop_out)
                mail[position] = idle[peer] = there
                if position in waiting:
                    self._runnable.append(waiting.pop(position))
