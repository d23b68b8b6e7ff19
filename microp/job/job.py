"""A job: what is to be run, with everything that a rank needs to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from microp import settings
from microp.job.torch_support import nearest_in_torch, torch_problems
from microp.schedule import Partition, Schedule, spread


class Workload(NamedTuple):
    """The part of a job that a device has to run."""

    schedule: Schedule
    layers: tuple[int, ...]  # the number of layers of each stage
    rows: tuple[int, ...]  # the number of rows of each microbatch
    checkpointing: settings.Checkpointing
    states: int = settings.ADAM.states  # the tensors of a weight's size that the optimizer keeps for each weight
    holds: settings.Holds = settings.HOLDS_NOTHING  # what transport and sums hold of the device's memory

    @property
    def mean_rows(self) -> float:
        """The mean number of rows of a microbatch."""
        return sum(self.rows) / len(self.rows)


def workload_of(asked: Any, schedule: Schedule, sizes: Sequence[int], backend: str, replica: int = 0) -> Workload:
    """Return what one replica runs, by default the first one, which has most rows.

    `asked` is a `Job` or a configuration; `sizes` are the numbers of layers of the stages.
    """
    rows = unit_rows(spread(asked.batch_size, max(asked.replicas, 1))[replica], schedule)
    holds = settings.transport_holds(backend, asked.device, asked.replicas > 1 and asked.sync.has_buckets)
    layers, checkpointing = tuple(sizes) * schedule.copies, asked.checkpointing
    if len(checkpointing.spared(schedule.units)) == schedule.units:  # none is recomputed
        checkpointing = settings.NEVER
    return Workload(schedule, layers, rows, checkpointing, asked.optimizer.states, holds)


def unit_rows(rows: int, schedule: Schedule) -> tuple[int, ...]:
    """Return the rows of each unit of a step: of each microbatch, or of each of its slices, which have all its rows."""
    return tuple(count for count in spread(rows, schedule.chunks) for _ in range(schedule.slices))


class Snapshot(NamedTuple):
    """A saved training."""

    folder: str
    step: int  # the number of steps that had been made, which is the index of the next one


@dataclass(frozen=True)
class Job:
    """Everything that a rank needs to know: the configuration, checked, and the values that follow from it.

    Raises:
        ValueError: the partition does not fit the model and the schedule.
    """

    run_id: str
    schedule: Schedule
    partition: Partition
    model: settings.ModelSettings
    checkpointing: settings.Checkpointing
    data: settings.DataSettings
    device: settings.DeviceSettings
    backend: str
    timeout_s: float
    batch_size: int
    steps: int
    warmup_steps: int
    learning_rate: float
    seed: int
    engine: settings.EngineSettings
    sync: settings.SyncSettings
    replicas: int = 1
    replica: int | None = None  # the replica that the job is for; None: all of them
    question_id: str = ""
    snapshot: settings.SnapshotSettings = field(default_factory=lambda: settings.NO_SNAPSHOTS)
    resumed: Snapshot | None = None  # the training from which the run goes on; None: from its beginning
    optimizer: settings.OptimizerSettings = field(default_factory=lambda: settings.ADAM)
    computing: settings.Computing = settings.AS_WRITTEN
    notes: tuple[str, ...] = ()  # what the user should know about how the partition was chosen
    profile: str | None = None  # the file that an emulated device has its times from

    def __post_init__(self) -> None:
        if len(self.partition.sizes) != self.schedule.depth or self.partition.layers != self.model.layers:
            raise ValueError(
                f"partition {self.partition.sizes} does not cut {self.model.layers} layers "
                f"into the schedule's {self.schedule.depth} stages"
            )

    def layers_of(self, stage: int) -> range:
        """Return the indices of a stage's layers in the model, which a stage of another copy has too."""
        return self.partition.layers_of(stage % self.schedule.depth)

    @property
    def ranks(self) -> int:
        """The number of ranks in one pipeline."""
        return len(self.schedule.ranks)

    @property
    def processes(self) -> int:
        """The number of ranks in all pipelines."""
        return self.ranks * self.replicas

    @property
    def shares(self) -> tuple[int, ...]:
        """The number of rows of each replica, as even as possible."""
        return spread(self.batch_size, self.replicas)

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each microbatch, as even as possible, of one replica or of all in order.

        In a schedule with slices, of each unit: the slices of a microbatch have as many rows as it has.
        """
        shares = self.shares if self.replica is None else (self.shares[self.replica],)
        return tuple(rows for share in shares for rows in unit_rows(share, self.schedule))

    @property
    def counts_rows(self) -> bool:
        """Whether actions of more rows take longer: nominal times may be of a microbatch, whatever its rows."""
        return not self.device.is_emulated or self.profile is not None or "row" in getattr(self.device, "per", ())

    def units_of(self, batch: Any) -> list[Any]:
        """Return the units of a tensor (rows, ...) of one replica's batch: its microbatches, or their slices."""
        slices = self.schedule.slices
        microbatches = batch.split(self.rows[::slices])
        if slices == 1:
            return list(microbatches)
        return [unit for microbatch in microbatches for unit in microbatch.chunk(slices, dim=1)]

    def of(self, replica: int) -> Job:
        """Return the job of one replica, with only its rows."""
        return replace(self, replica=replica)

    @property
    def workload(self) -> Workload:
        """The workload of one replica: if it is not given, of the first one, which has most rows."""
        return workload_of(self, self.schedule, self.partition.sizes, self.backend, self.replica or 0)

    @property
    def torch_schedule(self) -> Schedule:
        """The schedule that torch runs: this one, or in a comparison the nearest that torch has.

        An emulated device knows the time of a divided backward only where the job's own order has one.
        """
        compares = self.engine.name == "compare" and not (self.device.is_emulated and self.schedule.input_gradients)
        return nearest_in_torch(self.schedule) if compares else self.schedule

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that run steps in turn; the run is about the first one."""
        if self.engine.name != "compare":
            return (self.engine.name,)
        # The limit of an emulated step is its closed form; that of two copies is not known.
        limit = () if self.device.is_emulated or self.schedule.copies > 1 else ("limit",)
        torch = () if torch_problems(self.torch_schedule, self.checkpointing, self.rows) else ("torch",)
        return ("microp", *limit, *torch)

    @property
    def training_steps(self) -> int:
        """The number of warm-up and measured steps, of all engines; the step for memory comes after them."""
        return (self.warmup_steps + self.steps) * len(self.engines)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a training step."""
        return self.learning_rate * self.optimizer.share(step, self.training_steps)

    @property
    def first_step(self) -> int:
        """The index of the first step that is not already in the snapshot from which the run goes on."""
        return self.resumed.step if self.resumed else 0

    def phases(self) -> Iterator[tuple[int, str, str]]:
        """Yield (index, phase, engine) of every step to run; phases are warmup, measured and memory.

        A run that goes on from a snapshot warms up like every other, loads the snapshot, and makes the other steps.
        """
        engines, index = self.engines, 0
        for turn in range(self.warmup_steps + self.steps):
            phase = "warmup" if turn < self.warmup_steps else "measured"
            for place in range(len(engines)):
                if phase == "warmup" or index >= self.first_step:
                    yield index, phase, engines[(turn + place) % len(engines)]  # so that none always comes first
                index += 1
        if index >= self.first_step:
            yield index, "memory", engines[0]
