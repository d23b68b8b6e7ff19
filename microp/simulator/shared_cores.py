"""Simulates a schedule whose ranks share cores.

::

    2 cores, 3 ranks that compute      each runs at 2/3 of its speed until one of them waits
    rank 0   |F0────|·················
    rank 1   |F0─────────|·····            an action is work; its time follows from the speed
    rank 2   |F0─────────────|

The speed changes only when an action begins or ends. The actions' work is the same on any number of cores; what taking
turns costs is a part of the speed. With a core for each rank the spans are those of `simulate`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from microp.schedule import Schedule
from microp.simulator.costs import Costs
from microp.simulator.lowered import NONE, lower, refuse
from microp.trace import Spans

SMALL = 1e-9  # of the longest time; two moments that are closer are one


def simulate_on_cores(schedule: Schedule, costs: Costs, speed: Callable[[int], float]) -> Spans:
    """Return the spans of one step as `simulate`, of ranks whose speed depends on how many compute at once.

    Args:
        costs: the times at speed 1; hops are asynchronous.
        speed: the number of ranks that compute -> the speed of each, above 0.

    Raises:
        ValueError: as `simulate`.
    """
    lowered = lower(schedule, costs)
    actions, kind = lowered.actions, lowered.kind
    takes, _, peers, hops, after = ([values[index] for index in kind] for values in lowered.kinds)
    source = lowered.source.tolist()
    firsts = actions.first.tolist()
    ends = [*firsts[1:], len(actions)]
    at = list(firsts)  # the position of each rank's current action
    work = [0.0] * len(firsts)  # what is left of it
    is_after = [False] * len(firsts)  # whether the engine's own time after the action is running
    waits = [0.0] * len(actions)
    starts, finished = [0.0] * len(actions), [0.0] * len(actions)
    arrivals: dict[int, float] = {}  # sender's position -> when its message is there
    running: set[int] = set()
    waiting = {row for row in range(len(firsts)) if at[row] < ends[row]}
    tiny = SMALL * max(1e-6, *map(float, takes))
    now = 0.0

    while waiting or running:
        for row in sorted(waiting):
            position = at[row]
            if source[position] == NONE or arrivals.get(source[position], inf) <= now + tiny:
                starts[position] = now
                work[row], is_after[row] = float(takes[position]), False
                waiting.discard(row)
                running.add(row)
        rate = speed(len(running)) if running else 1.0
        next_end = min((now + work[row] / rate for row in running), default=inf)
        needed = [arrivals[source[at[row]]] for row in waiting if source[at[row]] in arrivals]
        later = min([next_end, *needed])
        if later == inf:
            refuse(schedule)
        for row in running:
            work[row] -= (later - now) * rate
        now = later
        for row in [row for row in sorted(running) if work[row] <= tiny]:
            position = at[row]
            if not is_after[row]:
                finished[position] = now
                if peers[position] != NONE:
                    arrivals[position] = now + float(hops[position])
                if after[position]:
                    work[row], is_after[row] = float(after[position]), True
                    continue
            running.discard(row)
            at[row] += 1
            if at[row] < ends[row]:
                waits[at[row]] = now
                waiting.add(row)
    wait, start, end = (np.array(times, np.float64) for times in (waits, starts, finished))
    return Spans(actions, wait, start, start, end)
