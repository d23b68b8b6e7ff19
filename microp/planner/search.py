"""Searches the plans that are not worse than another one in both time and memory.

::

    memory │ x
           │     x                      x: the front
           │        o    x  o           o: a plan of the front is faster and needs no more memory
           └───────────────── time

Every candidate is simulated, with its best partition. They are compared by the time that a run is
predicted to take, which is computed for those whose actions alone are not slower already than another plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from microp import trace
from microp.planner.choices import ORDERS, Choice, Priced, Pricer, knobs_of
from microp.schedule.builders import LOOPED
from microp.simulator import simulate

CLOSE = 1e-9  # relative
FULL = 0.95  # of the cap: a rank that is fuller is what binds
SHARED = 1.5  # of the time of its actions: a plan that takes longer waits for cores
BUSY = 0.9  # of the step: a rank that computes longer is what binds


class Space(NamedTuple):
    """What is searched: the product of these, as far as it exists."""

    schedules: Sequence[str] = tuple(ORDERS)
    chunks: Sequence[int] = (4, 8, 16, 32)
    checkpointing: Sequence[str] = ("never", "always")
    partitions: Sequence[str] = ("uniform", "balanced")
    # those that a schedule may have, with their values; None, or of one that is not here: its default
    knobs: Mapping[str, Sequence[Any] | None] = {"stages_per_rank": (2,), "slices": (2,)}
    replicas: Sequence[int] = (1,)

    def choices(self) -> Iterator[Choice]:
        """Yield every choice; with one stage per rank a looped schedule is another one, and is left out."""
        for replicas, chunks, name in product(self.replicas, self.chunks, self.schedules):
            keys = knobs_of(name)
            for values in product(*(self.knobs.get(key) or (None,) for key in keys)):
                knobs = tuple(knob for knob in zip(keys, values, strict=True) if knob[1] is not None)
                if name in LOOPED and ("stages_per_rank", 1) in knobs:
                    continue
                for policy, partition in product(self.checkpointing, self.partitions):
                    yield Choice(name, chunks, policy, partition, knobs, replicas)


class Found(NamedTuple):
    """The result of a search."""

    front: list[Priced]  # the plans that no other one beats in both time and memory, the fastest first
    # the plan that needs least memory of those above the cap, and the fastest one above it; empty if none is
    over: list[Priced]
    candidates: int  # how many exist
    too_large: int  # how many need more memory than there is


def search(pricer: Pricer, space: Space, cap: float | None, tick: Callable[[float], object] = float) -> Found:
    """Return the Pareto front of time and memory among all plans within the cap.

    Args:
        cap: the bytes of memory of each rank; None: no limit.
        tick: called with the share of the work that is done.
    """
    plans = sorted(_priced(pricer, list(space.choices()), cap, tick), key=lambda plan: plan.step)
    over = [plan for plan in plans if cap is not None and plan.peak > cap]
    front: list[Priced] = []
    for number, plan in enumerate(plans):
        tick(0.9 + 0.1 * number / len(plans))
        if plan not in over and not any(each.step <= pricer.least(plan) and each.peak <= plan.peak for each in front):
            front = front_of([*front, pricer.forecast(plan)])
    smallest = min(over, key=lambda plan: plan.peak, default=None)
    ends = [] if smallest is None else [pricer.forecast(smallest), pricer.forecast(over[0])]
    return Found(front, ends, len(plans), len(over))


def _priced(
    pricer: Pricer, choices: Sequence[Choice], cap: float | None, tick: Callable[[float], object]
) -> list[Priced]:
    """Return the choices that exist, with their prices; a balanced partition that is the uniform one does not."""
    plans: dict[Any, Priced] = {}
    for number, choice in enumerate(sorted(choices, key=lambda choice: choice.partition != "uniform")):
        tick(0.9 * number / len(choices))
        if (plan := pricer.price(choice, cap)) is not None:
            plans.setdefault((choice._replace(partition=""), plan.sizes), plan)
    return list(plans.values())


def front_of(plans: Iterable[Priced]) -> list[Priced]:
    """Return the plans that no other one beats in both time and memory, the fastest first; of equal ones the first."""
    front: list[Priced] = []
    # times that differ by rounding are equal; stable: equal plans keep their order
    for plan in sorted(plans, key=lambda each: (float(f"{each.step:.9g}"), each.peak)):
        if not front or plan.peak < front[-1].peak * (1 - CLOSE):
            front.append(plan)
    return front


def what_binds(pricer: Pricer, plan: Priced, cap: float | None) -> str:
    """Return what keeps a plan from being faster: a rank's compute or memory, shared cores, hops, or the bubble."""
    schedule = pricer.schedule(plan.choice)
    assert schedule is not None, "it was priced"
    task = pricer.task(plan.choice, schedule)
    workload = task.workload(plan.sizes)
    costs = task.prices.costs(workload)
    spans = simulate(schedule, costs)
    busy = spans.per_rank(spans.end - spans.start, np.add)
    busiest = max(busy, key=lambda rank: busy[rank])
    found = []
    if cap is not None and plan.peak > FULL * cap:
        found.append(f"memory of rank {plan.peaks.index(plan.peak)}")
    actions = task.step(plan.sizes)
    if plan.step > SHARED * actions:
        found.append("cores that ranks share")
    elif busy[busiest] >= BUSY * actions:
        found.append(f"compute of rank {busiest}")
    else:
        free = replace(costs, latency=0, boundary=(), reduction=())
        without = float(trace.makespan(simulate(schedule, free)))
        idle = actions - busy[busiest]
        found.append("hops" if actions - without > idle / 2 else "the bubble")
    return ", ".join(found)
