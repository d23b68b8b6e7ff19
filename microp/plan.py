"""What is to be run: all that a rank needs to know, checked and worked out in the parent.

::

    configuration ──► Plan ──► every rank, as one picklable value
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from microp import peer
from microp.data import Data
from microp.device import DeviceSettings, Workload
from microp.emulated import EmulatedSettings
from microp.engine import EngineSettings
from microp.model import Model
from microp.partition import Partition, spread
from microp.replicate import SyncSettings
from microp.schedule import Schedule
from microp.schedule_io import to_text
from microp.stage import Checkpointing


@dataclass(frozen=True)
class Plan:
    """All that a rank needs to know: what the configuration says, checked and worked out.

    Raises:
        ValueError: the partition fits neither the model nor the schedule.
    """

    run_id: str
    schedule: Schedule
    partition: Partition
    model: Model
    checkpointing: Checkpointing
    data: Data
    device: DeviceSettings
    backend: str
    timeout_s: float
    batch_size: int
    steps: int
    warmup_steps: int
    learning_rate: float
    seed: int
    engine: EngineSettings
    sync: SyncSettings
    replicas: int = 1
    replica: int | None = None  # whose plan this is; None: that of all of them

    def __post_init__(self) -> None:
        if len(self.partition.sizes) != self.schedule.stages or self.partition.layers != self.model.layers:
            raise ValueError(
                f"partition {self.partition.sizes} does not cut {self.model.layers} layers "
                f"into the schedule's {self.schedule.stages} stages"
            )

    @property
    def ranks(self) -> int:
        return len(self.schedule.ranks)

    @property
    def processes(self) -> int:
        """How many ranks there are in all pipelines."""
        return self.ranks * self.replicas

    @property
    def shares(self) -> tuple[int, ...]:
        """The number of rows of each replica: as even as can be."""
        return spread(self.batch_size, self.replicas)

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each microbatch, as even as can be: of this replica, or of one after the other."""
        shares = self.shares if self.replica is None else (self.shares[self.replica],)
        return tuple(rows for share in shares for rows in spread(share, self.schedule.chunks))

    def of(self, replica: int) -> Plan:
        """The plan as one replica has it: its rows alone."""
        return replace(self, replica=replica)

    @property
    def workload(self) -> Workload:
        """What the plan asks of a device."""
        rows = self.of(self.replica or 0).rows
        return Workload(self.schedule, self.partition.sizes, rows, self.checkpointing)

    @property
    def is_emulated(self) -> bool:
        return isinstance(self.device, EmulatedSettings)

    @property
    def torch_schedule(self) -> Schedule:
        """What torch runs: this schedule, or in a comparison of real compute the nearest it has."""
        compares = self.engine.name == "compare" and not self.is_emulated
        return peer.beside(self.schedule) if compares else self.schedule

    @property
    def engines(self) -> tuple[str, ...]:
        """Which engines run a step, in turn; the first is the one that the run is about."""
        if self.engine.name != "compare":
            return (self.engine.name,)
        limit = () if self.is_emulated else ("limit",)  # an emulated step's is the closed form
        torch = () if peer.problems(self.torch_schedule, self.checkpointing, self.rows) else ("torch",)
        return ("microp", *limit, *torch)

    def phases(self) -> Iterator[tuple[int, str, str]]:
        """(index, phase, engine) of every step; phases are warmup, measured and memory."""
        rounds = ["warmup"] * self.warmup_steps + ["measured"] * self.steps
        count = len(self.engines)
        steps = [
            (phase, self.engines[(turn + place) % count])  # nobody always comes first
            for turn, phase in enumerate(rounds)
            for place in range(count)
        ]
        return ((index, *step) for index, step in enumerate([*steps, ("memory", self.engines[0])]))

    def fingerprint(self) -> int:
        """A number that two ranks share only if they were given the same plan."""
        parts = (self.run_id, to_text(self.schedule), self.partition, self.model, self.checkpointing, self.data)
        numbers = (self.batch_size, self.steps, self.warmup_steps, self.learning_rate, self.seed, self.replicas)
        digest = hashlib.blake2b(repr((parts, numbers, self.sync)).encode(), digest_size=6).digest()
        return int.from_bytes(digest)
