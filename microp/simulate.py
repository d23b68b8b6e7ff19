"""Prices a schedule: what would each action's span be, if actions took what `Costs` says?

An action starts when its rank is free and its inputs are there; a tensor from another
rank is there one hop after its producer's end (asynchronous latency: the sender goes on
at once, links carry any number of tensors). One pass, linear in the number of actions;
integers and Fractions stay exact.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from microp.costs import Costs
from microp.schedule import Action, Schedule
from microp.trace import Span


def simulate(schedule: Schedule, costs: Costs) -> list[Span]:
    """The spans of one step, from time 0, in the order in which they become known.

    Raises:
        ValueError: the costs name another number of stages than the schedule has, or the
            schedule deadlocks.
    """
    if len(costs.forward) != schedule.stages:
        raise ValueError(f"costs of {len(costs.forward)} stages for a schedule of {schedule.stages}")
    ends: dict[Action, Any] = {}
    waiting: dict[Action, list[int]] = defaultdict(list)  # missing parent -> ranks that stand before it
    position = [0] * len(schedule.ranks)
    clock: list[Any] = [0] * len(schedule.ranks)
    spans = []
    runnable = list(range(len(schedule.ranks)))
    while runnable:
        rank = runnable.pop()
        row = schedule.ranks[rank]
        while position[rank] < len(row):
            action = row[position[rank]]
            parents = schedule.parents(action)
            missing = next((parent for parent in parents if parent not in ends), None)
            if missing is not None:
                waiting[missing].append(rank)
                break
            hops = (0 if schedule.placement[p.stage] == rank else costs.latency for p in parents)
            ready = max((ends[p] + hop for p, hop in zip(parents, hops, strict=True)), default=0)
            start = max(clock[rank], ready)
            clock[rank] = ends[action] = start + costs.of(action, action[1:] in schedule.split)
            spans.append(Span(rank, *action, start, clock[rank], ready))
            position[rank] += 1
            runnable.extend(waiting.pop(action, ()))
    if any(position[rank] < len(row) for rank, row in enumerate(schedule.ranks)):
        raise ValueError(f"schedule {schedule.name!r} deadlocks: validate() names the cycle")
    return spans
