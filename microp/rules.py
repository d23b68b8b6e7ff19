"""The rules across a configuration's fields, asked before any process starts.

::

    Config ── validate ──► what has to be changed, a sentence each: value, rule, remedy
    Config ── warn ──────► what a valid one should be told about
"""

from __future__ import annotations

import os

from microp import peer
from microp.config import Config, make_partition, make_schedule
from microp.device import Workload
from microp.emulated import EmulatedSettings
from microp.launch import joins
from microp.partition import Partition, spread
from microp.validate import validate as validate_schedule

QUICK = 100_000  # so many (rank, microbatch) pairs are built to say more about a configuration that is refused


def validate(config: Config) -> list[str]:
    """Everything that is wrong with a configuration, a sentence each: value, rule, remedy."""
    found = _out_of_range(config)
    for group in (config.model, config.checkpointing, config.tracking):
        found += group.problems()
    found += config.device.problems(ranks_here(config))
    found += config.comms.problems(config.device.name)
    found += config.launch.problems(config.ranks, config.replicas)
    if config.engine.name != "microp" and config.comms.name == "threads":
        found.append(f"engine={config.engine.name} needs ranks that are processes: use comms=auto")
    latency, backend = getattr(config.device, "latency_ms", 0), config.comms.backend(config.device.name)
    if latency and backend not in ("shm", "threads"):
        found.append(f"device.latency_ms={latency} needs stamped messages: use comms=shm or threads, not {backend}")
    if not config.model.problems():
        found += config.data.problems(config.model.row_bytes)
    if config.chunks > config.batch_size > 0:
        found.append(
            f"chunks={config.chunks} is more than batch_size={config.batch_size} has rows: "
            f"use at most {config.batch_size}"
        )
    elif config.replicas * config.chunks > config.batch_size > 0:
        found.append(
            f"replicas={config.replicas} times chunks={config.chunks} is more than batch_size={config.batch_size} "
            f"has rows: use a batch_size of at least {config.replicas * config.chunks}"
        )
    if config.replicas > 1 and config.engine.name != "microp":
        found.append(f"replicas={config.replicas} needs engine=microp, not {config.engine.name}")
    if getattr(config.device, "reduce_ms", None) is not None and config.sync.name in ("torch_ddp", "compare"):
        found.append(f"device.reduce_ms is not for sync={config.sync.name}, whose sums are part of its backward")
    if config.ranks > config.model.layers > 0:
        found.append(
            f"ranks={config.ranks} is more than model.layers={config.model.layers}: every rank "
            f"needs a layer, use at most {config.model.layers}"
        )
    return found + _unbuildable(config)


def _out_of_range(config: Config) -> list[str]:
    found = [
        f"{key}={value} is below 1: use at least 1"
        for key in ("ranks", "chunks", "replicas", "batch_size", "steps")
        if (value := getattr(config, key)) < 1
    ]
    if config.warmup_steps < 0:
        found.append(f"warmup_steps={config.warmup_steps} is below 0: use 0 or more")
    if config.activation_limit is not None and config.activation_limit < 1:
        found.append(f"activation_limit={config.activation_limit} is below 1: use at least 1, or null for none")
    if config.learning_rate <= 0:
        found.append(f"learning_rate={config.learning_rate} is not above 0: use one, as 0.001")
    return found


def _unbuildable(config: Config) -> list[str]:
    """What the builders of schedule and partition refuse, where their numbers are in range."""
    found, stages, schedule = [], config.ranks, None
    if _is_worth_a_schedule(config):
        try:
            schedule = validate_schedule(make_schedule(config), config.activation_limit)
            stages = schedule.stages
            if config.engine.batch_weights and not schedule.split:
                found.append(
                    f"engine.batch_weights=true, but schedule {schedule.name!r} has no W: use one that splits, as zb_h1"
                )
            if config.engine.name == "torch":
                rows = spread(config.batch_size, config.chunks)
                found += peer.problems(schedule, config.checkpointing, rows)
        except ValueError as error:
            found.append(str(error))
    if 1 <= config.ranks <= config.model.layers:
        try:
            partition = make_partition(config, stages)
            if isinstance(config.device, EmulatedSettings) and not config.device.problems(config.ranks):
                config.device.costs(_workload(config, partition), rows=1)
        except ValueError as error:
            found.append(str(error))
    backend = config.comms.backend(config.device.name)
    return found + config.sync.problems(schedule if config.replicas > 1 else None, backend)


def _workload(config: Config, partition: Partition) -> Workload:
    rows = spread(spread(config.batch_size, max(config.replicas, 1))[0], max(config.chunks, 1))
    return Workload(make_schedule(config), partition.sizes, rows, config.checkpointing)


def _is_worth_a_schedule(config: Config) -> bool:
    """Whether its numbers can be built: a typo (chunks=2000000000) that is refused anyway would take for ever."""
    if config.ranks < 1 or config.chunks < 1:
        return False
    refused = config.ranks > config.model.layers or config.chunks > config.batch_size
    return not refused or config.ranks * config.chunks <= QUICK


def ranks_here(config: Config) -> int:
    """How many of the ranks are on this host: all, unless torchrun has started some elsewhere."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if joins() else config.ranks * config.replicas


def warn(config: Config) -> list[str]:
    """What a valid configuration should be told about, a sentence each."""
    found = []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = ranks_here(config)
    who = f"ranks={here}" if config.replicas == 1 else f"{here} ranks of {config.replicas} replicas"
    if config.device.name == "cpu" and here * config.device.threads > cores:
        found.append(
            f"{who} compute on {cores} cores: they take turns, so the timings measure "
            f"the cores and not the schedule (gradients, losses and memory are exact all the same)"
        )
    partition = make_partition(config, make_schedule(config).stages)
    share, rank = config.partition.get("share"), config.partition.get("rank")
    if share is not None and rank is not None and config.ranks > 1:
        wanted = max(1, round(share * partition.layers))
        if wanted != partition.sizes[rank]:
            found.append(
                f"partition.share={share} of {partition.layers} layers is {wanted}, but the other ranks "
                f"need one each: rank {rank} gets {partition.sizes[rank]}"
            )
    return found
