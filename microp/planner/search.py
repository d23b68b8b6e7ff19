"""Searches the plans that are not worse than another one in both time and memory.

::

    memory │ x                          a candidate is left out without being simulated if a plan that was
           │     x                      simulated is faster than its lower bound and needs no more memory
           │          ?    ?
           └───────────────── time

Lower bounds and memory are computed on all cores. Candidates come in the order of their lower bounds, so that good
plans are known early. They are compared by the simulated time of their actions; those that are left get the time that
a run of theirs is predicted to take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, product
from typing import NamedTuple

from microp import trace
from microp.planner.choices import LOOPED, ORDERS, Choice, Priced, Pricer, shortest
from microp.planner.on_cores import on_cores
from microp.planner.prices import rank_loads
from microp.simulator import simulate

CLOSE = 1e-9  # relative
FULL = 0.95  # of the cap: a rank that is fuller is what binds
EFFORT = 60_000  # actions that the refinement of a plan may simulate
SHARED = 1.5  # of the time of its actions: a plan that takes longer waits for cores
BUSY = 0.9  # of the step: a rank that computes longer is what binds


class Space(NamedTuple):
    """What is searched: the product of these, as far as it exists."""

    schedules: Sequence[str] = tuple(ORDERS)
    chunks: Sequence[int] = (4, 8, 16, 32)
    checkpointing: Sequence[str] = ("never", "always")
    partitions: Sequence[str] = ("uniform", "balanced")
    stages_per_rank: Sequence[int] = (2,)
    replicas: Sequence[int] = (1,)

    def choices(self) -> Iterator[Choice]:
        """Yield every choice; the number of stages per rank counts for looped schedules only."""
        for replicas, chunks, name in product(self.replicas, self.chunks, self.schedules):
            for each in self.stages_per_rank if name in LOOPED else (0,):
                for policy, partition in product(self.checkpointing, self.partitions):
                    yield Choice(name, chunks, policy, partition, each, replicas)


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        front: the plans that no other one beats in both time and memory, the fastest first.
        over: the plan that needs least memory of those above the cap, and the fastest one above it; empty if none is.
        candidates: how many exist.
        simulated: how many were simulated.
        too_large: how many need more memory than there is.
    """

    front: list[Priced]
    over: list[Priced]
    candidates: int
    simulated: int
    too_large: int


def search(pricer: Pricer, space: Space, cap: float | None, tick: Callable[[float], object] = float) -> Found:
    """Return the Pareto front of time and memory among all plans within the cap.

    Args:
        pricer: prices a choice.
        space: what to choose from.
        cap: the bytes of memory of each rank; None: no limit.
        tick: called with the share of the work that is done.
    """
    choices = list(space.choices())
    groups = [list(group) for _, group in groupby(choices, key=_order_of)]  # which share a schedule and its memory
    weighed = on_cores(lambda group: [_weigh(pricer, choice) for choice in group], groups, lambda done: tick(done / 2))
    waiting: list[tuple[float, int, Priced]] = []
    over: list[tuple[float, int, Priced]] = []
    for each in chain.from_iterable(weighed):
        if each is None:
            continue
        bound, priced = each
        (over if cap is not None and priced.peak > cap else waiting).append((bound, len(waiting) + len(over), priced))
    waiting.sort(key=lambda each: each[:2])
    known: list[Priced] = []
    simulated = 0
    for number, (bound, _, priced) in enumerate(waiting):
        tick(0.5 + 0.4 * number / len(waiting))
        if any(plan.step <= bound * (1 + CLOSE) and plan.peak <= priced.peak * (1 + CLOSE) for plan in known):
            continue
        simulated += 1
        known = front_of([*known, _simulated(pricer, priced)])
    refined = []
    for number, plan in enumerate(known):
        tick(0.9 + 0.1 * number / len(known))
        if "balanced" in space.partitions:
            better = pricer.price(plan.choice._replace(partition="balanced"), refine=True, cap=cap, effort=EFFORT)
            refined += [better] if better is not None else []
    return Found(
        front_of(map(pricer.forecast, front_of([*known, *refined]))),
        _over(pricer, [priced for _, _, priced in sorted(over, key=lambda each: each[:2])]),
        len(waiting) + len(over),
        simulated,
        len(over),
    )


def _order_of(choice: Choice) -> tuple[int, int, str, int]:
    return choice.replicas, choice.chunks, choice.schedule, choice.stages_per_rank


def _weigh(pricer: Pricer, choice: Choice) -> tuple[float, Priced] | None:
    """Return a choice's lower bound and the choice with its memory, not simulated; None if there is no such plan."""
    schedule = pricer.schedule(choice)
    if schedule is None:
        return None
    task = pricer.task(choice, schedule)
    sizes = pricer.sizes(choice, task)
    if sizes is None:
        return None
    ranks = pricer.ranks(choice, schedule)
    peaks = tuple(ranks.peaks(sizes)) if ranks is not None else ()
    return shortest(task, sizes), Priced(choice, sizes, 0.0, peaks)


def _simulated(pricer: Pricer, priced: Priced) -> Priced:
    schedule = pricer.schedule(priced.choice)
    assert schedule is not None, "it was weighed"
    return priced._replace(step=pricer.task(priced.choice, schedule).step(priced.sizes))


def _over(pricer: Pricer, plans: Sequence[Priced]) -> list[Priced]:
    """Return the smallest and the fastest of the plans that need too much memory, which come by their lower bounds."""
    if not plans:
        return []
    smallest = min(plans, key=lambda plan: plan.peak)
    return [pricer.forecast(_simulated(pricer, plan)) for plan in (smallest, plans[0])]


def front_of(plans: Iterable[Priced]) -> list[Priced]:
    """Return the plans that no other one beats in both time and memory, the fastest first; of equal ones the first."""
    front: list[Priced] = []
    for plan in sorted(plans, key=lambda each: (each.step, each.peak)):  # stable: equal plans keep their order
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
    loads = rank_loads(workload, costs)
    busiest = max(range(len(loads)), key=lambda rank: loads[rank])
    found = []
    if cap is not None and plan.peak > FULL * cap:
        found.append(f"memory of rank {plan.peaks.index(plan.peak)}")
    actions = task.step(plan.sizes)
    if plan.step > SHARED * actions:
        found.append("cores that ranks share")
    elif loads[busiest] >= BUSY * actions:
        found.append(f"compute of rank {busiest}")
    else:
        free = replace(costs, latency=0, boundary=(), reduction=())
        without = float(trace.makespan(simulate(schedule, free)))
        idle = actions - loads[busiest]
        found.append("hops" if actions - without > idle / 2 else "the bubble")
    return ", ".join(found)
