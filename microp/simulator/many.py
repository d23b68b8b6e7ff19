"""Computes the step of a schedule under many costs at once, for example those of many partitions.

::

    forward      [[5, 6, 4], [5, 4, 6]]    per stage a column: one number for each of three costs
    end of 0F0    [5, 6, 4]                 so is the end of every action
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Schedule
from microp.simulator.costs import Costs
from microp.simulator.lowered import Lowered, lower

Floats = NDArray[np.float64]


def step_times(schedule: Schedule, costs: Costs) -> Floats:
    """Return the time of a step, with the sums over the replicas, under each of the costs.

    Args:
        schedule: a valid order.
        costs: with a column as the value of a stage where a plain `Costs` has a number; hops are pure delays.
    """
    clocks, ends = _ends(lower(schedule, costs))
    if costs.reduction:
        clocks += [_sums_end(schedule, ends, rank, costs.reduction) for rank in range(len(schedule.ranks))]
    step: Floats = np.max(np.broadcast_arrays(*clocks), axis=0)
    return step


def _ends(lowered: Lowered) -> tuple[list[Any], list[Any]]:
    """Return the end of each rank's last action, and of every action.

    Each rank runs its row until it needs a message of an action that has not run, and goes on when that has.
    """
    takes, hops, _, _, after = lowered.kinds
    source, kind, first = lowered.source.tolist(), lowered.kind.tolist(), lowered.actions.first.tolist()
    whole = [time + more for time, more in zip(takes, after, strict=True)]
    ends: list[Any] = [None] * len(source)
    reached, stops, free = list(first), [*first[1:], len(source)], list[Any]([0.0]) * len(first)
    waiting: dict[int, int] = {}  # sender's position -> the row that waits for it
    runnable = list(range(len(first)))
    while runnable:
        row = runnable.pop()
        now = free[row]
        for position in range(reached[row], stops[row]):
            sender, of_kind = source[position], kind[position]
            if sender >= 0:
                if ends[sender] is None:
                    waiting[sender] = row
                    reached[row], free[row] = position, now
                    break
                now = np.maximum(now, ends[sender] + hops[of_kind])
            ends[position] = now + takes[of_kind]
            now = now + whole[of_kind]
            if position in waiting:
                runnable.append(waiting.pop(position))
    assert not waiting, "a valid order does not deadlock"
    return [ends[stop - 1] for stop in stops], ends


def _sums_end(schedule: Schedule, ends: list[Any], rank: int, sums: tuple[Any, ...]) -> Any:
    """Return when a rank has ended the sums of its stages, one after the other in the order of their last gradients."""
    place = {action: at for at, action in enumerate(action for row in schedule.ranks for action in row)}
    stages = schedule.stages_of(rank)
    made = np.array([ends[place[schedule.last_gradients[stage]]] for stage in stages])
    order, times = np.argsort(made, axis=0, kind="stable"), np.array([sums[stage] for stage in stages])
    free: Any = 0.0
    for start, time in zip(np.take_along_axis(made, order, 0), np.take_along_axis(times, order, 0), strict=True):
        free = np.maximum(free, start) + time
    return free
