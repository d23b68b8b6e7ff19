"""Prices what a planner can choose: schedule and its knobs, chunks, checkpointing, partition and replicas.

::

    Choice("1f1b", chunks=8, ...) ─┐
    Subject: layers, devices, rows ┴─ Pricer ─► Priced: time of a step, memory of each rank

Schedules and the counts of what their ranks hold are computed once for all choices that share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple

from microp.job import Workload, unit_rows
from microp.planner.balance import Task, refined
from microp.planner.prices import Prices
from microp.schedule import Schedule, builders, spread, uniform
from microp.settings import HOLDS_NOTHING, Checkpointing, Holds
from microp.simulator import LayerMemory, Ranks

ORDERS = {name: build for name, build in builders.ORDERS.items() if name != "naive"}
KNOBS = ("stages_per_rank", "slices", "group", "warmup")  # of group schedule: what is chosen beside the schedule
POLICIES = ("never", "except_last", "always")  # and segments=n


class Choice(NamedTuple):
    """What a plan chooses; it is written as on the command line."""

    schedule: str  # the option of group schedule
    chunks: int
    checkpointing: str = "never"  # `never`, `always`, `except_last`, or `segments=2`
    partition: str = "uniform"  # `uniform` or `balanced`, or `given` for sizes that the user chose
    knobs: tuple[tuple[str, Any], ...] = ()  # the keys of the schedule that are chosen, with their values
    replicas: int = 1  # the number of pipelines that the devices are divided into

    def words(self) -> list[str]:
        """Return the overrides that choose this, without the partition."""
        found = [f"schedule={self.schedule}", f"chunks={self.chunks}"]
        found += [f"schedule.{key}={value}" for key, value in self.knobs]
        if self.checkpointing != "never":
            name, _, segments = self.checkpointing.partition("=")
            found.append(f"checkpointing={name}")
            found += [f"checkpointing.segments={segments}"] if segments else []
        return found + ([f"replicas={self.replicas}"] if self.replicas > 1 else [])


class Priced(NamedTuple):
    """A choice, and what it costs."""

    choice: Choice
    sizes: tuple[int, ...]  # the number of layers of each stage, of one copy of the model
    step: float  # the time of a step, in the unit of the prices: of its simulated actions, or after `forecast` of all
    peaks: tuple[float, ...]  # the bytes of each rank at its peak; empty if nothing is known about memory

    @property
    def peak(self) -> float:
        """The bytes of the fullest rank."""
        return max(self.peaks, default=0.0)


@dataclass(frozen=True)
class Subject:
    """What is planned."""

    layers: int
    devices: int  # the number of devices, all replicas together
    batch_size: int
    prices: Prices
    # returns the memory of each layer, for a backward that is divided or not, a number of slices and the rows of a
    # microbatch; None: memory does not count
    memory: Callable[[bool, int, float], Sequence[LayerMemory]] | None = None
    # a number of rows -> the bytes of their inputs and of their targets
    batch_bytes: Callable[[int], tuple[float, float]] = lambda _: (0, 0)
    states: int = 2  # the tensors of a weight's size that the optimizer keeps for each weight
    holds: Holds = HOLDS_NOTHING  # as in `Workload`; the buckets are those of several replicas
    # returns the order that runs, from its schedule's name, the order and the number of replicas; raises ValueError if
    # none can
    as_run: Callable[[str, Schedule, int], Schedule] = lambda _, schedule, __: schedule


def knobs_of(schedule: str) -> dict[str, Any]:
    """Return the knobs of a schedule, with their defaults."""
    parameters = signature(ORDERS[schedule]).parameters
    return {key: parameters[key].default for key in KNOBS if key in parameters}


def policy(text: str) -> Checkpointing:
    """Return the checkpointing policy of a choice."""
    name, _, segments = text.partition("=")
    return Checkpointing(name, int(segments or name != "never"), name == "except_last")


class Pricer:
    """Prices choices for one subject; `refusals` are the reasons why schedules do not exist."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.refusals = subject, list[str]()
        self._schedules: dict[tuple[Any, ...], Schedule | None] = {}
        self._counts: dict[tuple[Any, ...], Any] = {}
        self._given: tuple[int, ...] = ()

    def add(self, choice: Choice, schedule: Schedule, sizes: Sequence[int]) -> Priced:
        """Return the price of a user's own choice: this schedule, and these sizes for the partition `given`."""
        self._schedules[choice.schedule, len(schedule.ranks), schedule.chunks, choice.knobs] = schedule
        self._given = tuple(sizes)
        priced = self.price(choice)
        assert priced is not None, "it exists"
        return priced

    def schedule(self, choice: Choice) -> Schedule | None:
        """Return the schedule of a choice, or None if there is none for its numbers."""
        ranks = self.subject.devices // choice.replicas
        if ranks * choice.replicas != self.subject.devices or ranks > self.subject.layers:
            return None
        if choice.chunks * choice.replicas > self.subject.batch_size:
            return None
        key = choice.schedule, ranks, choice.chunks, choice.knobs
        if key not in self._schedules:
            try:
                built = ORDERS[choice.schedule](ranks=ranks, chunks=choice.chunks, **dict(choice.knobs))
                self._schedules[key] = self.subject.as_run(choice.schedule, built, choice.replicas)
            except (KeyError, ValueError) as error:
                self._schedules[key] = None
                self.refusals.append(str(error))
        found = self._schedules[key]
        return found if found is not None and found.depth <= self.subject.layers else None

    def task(self, choice: Choice, schedule: Schedule) -> Task:
        """Return what the partition of a choice is for."""
        return Task(self._workload(choice, schedule), self.subject.prices)

    def _share(self, choice: Choice) -> int:
        """Return the rows of the first replica, which has most."""
        return spread(self.subject.batch_size, choice.replicas)[0]

    def _workload(self, choice: Choice, schedule: Schedule) -> Workload:
        """Return what one replica runs, for any partition."""
        rows, holds = unit_rows(self._share(choice), schedule), self.subject.holds
        holds = holds._replace(buckets=holds.buckets and choice.replicas > 1)
        return Workload(schedule, (), rows, policy(choice.checkpointing), self.subject.states, holds)

    def layers(self, choice: Choice, schedule: Schedule) -> Sequence[LayerMemory] | None:
        """Return the memory of the layers in a choice, or None if memory does not count."""
        if self.subject.memory is None:
            return None
        return self.subject.memory(bool(schedule.input_gradients), schedule.slices, self._share(choice) / choice.chunks)

    def ranks(self, choice: Choice, schedule: Schedule) -> Ranks | None:
        """Return the memory of the ranks of a choice, or None if memory does not count."""
        if (memory := self.layers(choice, schedule)) is None:
            return None
        workload = self._workload(choice, schedule)
        uneven = workload.rows if len(set(workload.rows)) > 1 else ()
        order = choice.schedule, len(schedule.ranks), choice.chunks, choice.knobs
        policy = workload.checkpointing
        key = order, policy.spared(choice.chunks) if policy.segments else None, uneven
        ranks = Ranks(workload, memory, self.subject.batch_bytes(self._share(choice)), self._counts.get(key))
        self._counts[key] = ranks.counts
        return ranks

    def price(self, choice: Choice, cap: float | None = None) -> Priced | None:
        """Return what a choice costs by its simulated actions, or None if it does not exist.

        Args:
            cap: the bytes of each rank, which a balanced partition keeps to.
        """
        schedule = self.schedule(choice)
        if schedule is None:
            return None
        task, ranks = self.task(choice, schedule), self.ranks(choice, schedule)
        sizes: tuple[int, ...] | None = uniform(self.subject.layers, schedule.depth).sizes
        if choice.partition == "given":
            sizes = self._given if len(self._given) == schedule.depth else None
        elif choice.partition == "balanced":
            sizes = refined(replace(task, ranks=ranks, cap=cap), self.subject.layers)
        if sizes is None:
            return None
        peaks = tuple(ranks.peaks(task.workload(sizes).layers)) if ranks is not None else ()
        return Priced(choice, sizes, task.step(sizes), peaks)

    def least(self, plan: Priced) -> float:
        """Return a time that the forecast of a plan, whose actions were simulated, is not shorter than."""
        return plan.step * self.subject.prices.fastest(
            self.subject.batch_size / plan.choice.replicas / plan.choice.chunks
        )

    def forecast(self, plan: Priced) -> Priced:
        """Return the plan with the predicted time of its whole step; the same plan if that is not known."""
        schedule = self.schedule(plan.choice)
        assert schedule is not None, "it was priced"
        workload = self.task(plan.choice, schedule).workload(plan.sizes)
        batch = self.subject.batch_bytes(self._share(plan.choice))
        step = self.subject.prices.forecast(workload, batch, plan.choice.replicas).step_ms
        return plan if step is None else plan._replace(step=step)
