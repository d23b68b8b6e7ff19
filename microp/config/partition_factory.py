"""Makes the partition of a configuration; a builder that asks for it is told what the partition is for.

::

    def uniform(layers, stages)                 needs two numbers
    def balanced(layers, stages, task, ...)     `task` has the schedule, times, memory and cap of this configuration
"""

from __future__ import annotations

from typing import Any, NamedTuple

from microp.config.config_checks import ranks_here
from microp.config.factory import build
from microp.config.prediction import layer_memory
from microp.config.profiles import held_beside, prices_of, profile_command, rows_of_first_replica
from microp.config.schema import Config
from microp.job import Workload
from microp.planner import NoRoomError, Task
from microp.schedule import Partition, Schedule, of_sizes, uniform
from microp.system import GIB


class Chosen(NamedTuple):
    """A partition and how it was made."""

    partition: Partition
    notes: tuple[str, ...] = ()  # what the user should know about it, one sentence each
    by_costs: bool = False  # whether its builder asked what the partition is for

    def asked(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the plain configuration by which the run is known: a partition that was computed counts by its sizes.

        The same sizes are the same question, whatever the costs were from which they follow.
        """
        if not self.by_costs:
            return config
        builder = f"{of_sizes.__module__}.{of_sizes.__name__}"
        return {**config, "partition": {"name": "sizes", "builder": builder, "sizes": list(self.partition.sizes)}}


def choose_partition(config: Config, schedule: Schedule | None) -> Chosen | None:
    """Return the partition that the builder of group `partition` makes, or raise ValueError with what is wrong with it.

    None if the builder asks what the partition is for, and that is refused anyway, such as the order, which is None.
    """
    tasks: list[Task] = []

    def task() -> Task:
        device = config.device
        if schedule is None or device.problems() or device.speed_problems(config.ranks) or config.model.problems():
            raise _NoTaskError
        tasks.append(task_of(config, schedule))
        return tasks[-1]

    stages = config.ranks if schedule is None else schedule.stages
    try:
        partition = build(
            "partition", config.partition, Partition, {"task": task}, layers=config.model.layers, stages=stages
        )
    except _NoTaskError:
        return None
    except ValueError as error:
        if not isinstance(error.__cause__, NoRoomError):
            raise
        partition = uniform(config.model.layers, stages)  # `memory_advice` refuses it, and says what would fit
    if not tasks:
        return Chosen(partition)
    notes = []
    if not tasks[0].prices.is_known:
        remedy = "" if config.compile else f": {profile_command(config)} measures them"
        notes.append(
            f"partition={config.partition['name']} {list(partition.sizes)} weighs layers by their FLOPs and bytes, "
            f"because no times of them are known{remedy}"
        )
    return Chosen(partition, tuple(notes), by_costs=True)


class _NoTaskError(Exception):
    """The builder asks what the partition is for, and that is refused anyway."""


def task_of(config: Config, schedule: Schedule) -> Task:
    """Return what the partition is for, or raise ValueError if a model whose memory counts cannot be measured."""
    cap, rows = memory_cap(config), rows_of_first_replica(config)
    split, mean = bool(schedule.split), sum(rows) / len(rows)
    memory = None if cap is None else layer_memory(config.model, mean, split, config.computing)
    base = Workload(schedule, (), rows, config.checkpointing, config.optimizer.states, held_beside(config))
    return Task(base, prices_of(config), memory, cap, config.model.batch_bytes(sum(rows)))


def memory_cap(config: Config) -> float | None:
    """Return the bytes of memory that each rank has, or None if they are not limited."""
    if config.device.memory_gib is not None:
        return config.device.memory_gib * GIB
    if config.device.name != "cuda":
        return None
    import torch  # takes half a second, and only a GPU needs it

    if not torch.cuda.is_available():
        return None
    on_one = -(-ranks_here(config) // torch.cuda.device_count()) if config.device.is_shared else 1
    return torch.cuda.get_device_properties(0).total_memory / on_one
