"""Hydra in, a plan out: the typed schema, the rules across fields, and what follows from them.

::

    conf/*.yaml + command line ── Hydra ──► DictConfig ── read ──► Config
    Config ── validate ──► all its problems at once
    Config ── make_plan ─► a Plan, which is all that a rank gets

Defaults are in `conf/` and nowhere else. The options of most groups are dataclasses of the
room they belong to; `schedule` and `partition` name a builder, whose signature is the
schema of their keys, so that a new one is a function and a YAML file.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from microp.builder import build
from microp.comms import CommsSettings
from microp.data import Data, Synthetic, Text
from microp.device import DeviceSettings, Workload
from microp.emulated import EmulatedSettings
from microp.launch import LaunchSettings, joins
from microp.model import Gpt, Mlp, Model
from microp.partition import Partition, spread
from microp.schedule import Schedule
from microp.schedule_io import to_text
from microp.stage import Checkpointing
from microp.tracking import TrackingSettings
from microp.train import Plan
from microp.validate import validate as validate_schedule

CONF = Path(__file__).resolve().parent.parent / "conf"
# Not part of the question a run asks: where and how it runs, and a limit that refuses and changes nothing.
NOT_ASKED = ("tracking", "launch", "output_dir", "activation_limit")
QUICK = 100_000  # so many (rank, microbatch) pairs are built to say more about a configuration that is refused


@dataclass
class Config:
    """One run, as typed. See `conf/config.yaml` for what each key means."""

    ranks: int = MISSING
    chunks: int = MISSING
    replicas: int = MISSING
    batch_size: int = MISSING
    steps: int = MISSING
    warmup_steps: int = MISSING
    learning_rate: float = MISSING
    seed: int = MISSING
    repeat: int = MISSING
    activation_limit: int | None = MISSING
    output_dir: str = MISSING
    model: Model = MISSING
    partition: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    checkpointing: Checkpointing = MISSING
    data: Data = MISSING
    device: DeviceSettings = MISSING
    comms: CommsSettings = MISSING
    tracking: TrackingSettings = MISSING
    launch: LaunchSettings = MISSING


SCHEMAS: dict[str, type] = {
    "model/mlp": Mlp,
    "model/gpt": Gpt,
    "data/text": Text,
    "data/synthetic": Synthetic,
    "checkpointing": Checkpointing,
    "device": DeviceSettings,
    "device/emulated": EmulatedSettings,
    "comms": CommsSettings,
    "tracking": TrackingSettings,
    "launch": LaunchSettings,
    "config": Config,
}


def register_schemas() -> None:
    """Tell Hydra the types; to be called before it composes anything."""
    store = ConfigStore.instance()
    for path, schema in SCHEMAS.items():
        *folders, name = path.split("/")
        store.store(group="/".join(("schema", *folders)), name=name, node=schema)
    OmegaConf.register_new_resolver("option_list", option_list, replace=True)


def option_list() -> str:
    """The groups of `conf/`, their options, and the first line of each option's file."""
    lines = []
    for group in sorted(path for path in CONF.iterdir() if path.is_dir()):
        lines.append(f"  {group.name}")
        for option in sorted(group.glob("*.yaml")):
            comment = option.read_text().splitlines()[0].removeprefix("# ")
            lines.append(f"    {option.stem:16} {comment}")
    return "\n".join(lines)


class ConfigError(ValueError):
    """What a user has to change: one sentence a problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read(config: DictConfig) -> Config:
    """The composed configuration, with or without Hydra's own part, as plain dataclasses.

    Raises:
        ConfigError: a key has no value, or the wrong type.
    """
    config = copy.deepcopy(config)
    with read_write(config), open_dict(config):
        config.pop("hydra", None)
    missing = OmegaConf.missing_keys(config)
    if missing:
        raise ConfigError([f"{key} has no value: give one, as {key}=..." for key in sorted(missing)])
    try:
        result = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ConfigError([str(error).splitlines()[0]]) from error
    assert isinstance(result, Config)
    return result


# --- rules across fields -------------------------------------------------------------------------


def validate(config: Config) -> list[str]:
    """Everything that is wrong with a configuration, a sentence each: value, rule, remedy."""
    found = _out_of_range(config)
    for group in (config.model, config.checkpointing, config.tracking):
        found += group.problems()
    found += config.device.problems(ranks_here(config))
    found += config.comms.problems(config.device.name)
    found += config.launch.problems(config.ranks)
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
    if config.ranks > config.model.layers > 0:
        found.append(
            f"ranks={config.ranks} is more than model.layers={config.model.layers}: every rank "
            f"needs a layer, use at most {config.model.layers}"
        )
    return found + _unbuildable(config)


def _out_of_range(config: Config) -> list[str]:
    found = [
        f"{key}={value} is below 1: use at least 1"
        for key in ("ranks", "chunks", "batch_size", "steps")
        if (value := getattr(config, key)) < 1
    ]
    if config.warmup_steps < 0:
        found.append(f"warmup_steps={config.warmup_steps} is below 0: use 0 or more")
    if config.activation_limit is not None and config.activation_limit < 1:
        found.append(f"activation_limit={config.activation_limit} is below 1: use at least 1, or null for none")
    if config.learning_rate <= 0:
        found.append(f"learning_rate={config.learning_rate} is not above 0: use one, as 0.001")
    if config.replicas != 1:
        found.append(f"replicas={config.replicas}: only 1 copy of the pipeline can run so far, use replicas=1")
    return found


def _unbuildable(config: Config) -> list[str]:
    """What the builders of schedule and partition refuse, where their numbers are in range."""
    found, stages = [], config.ranks
    if _is_worth_a_schedule(config):
        try:
            stages = validate_schedule(make_schedule(config), config.activation_limit).stages
        except ValueError as error:
            found.append(str(error))
    if 1 <= config.ranks <= config.model.layers:
        try:
            partition = make_partition(config, stages)
            if isinstance(config.device, EmulatedSettings) and not config.device.problems(config.ranks):
                config.device.costs(_workload(config, partition), rows=1)
        except ValueError as error:
            found.append(str(error))
    return found


def _workload(config: Config, partition: Partition) -> Workload:
    rows = spread(config.batch_size, max(config.chunks, 1))
    return Workload(make_schedule(config), partition.sizes, rows, config.checkpointing)


def _is_worth_a_schedule(config: Config) -> bool:
    """Whether its numbers can be built: a typo (chunks=2000000000) that is refused anyway would take for ever."""
    if config.ranks < 1 or config.chunks < 1:
        return False
    refused = config.ranks > config.model.layers or config.chunks > config.batch_size
    return not refused or config.ranks * config.chunks <= QUICK


def ranks_here(config: Config) -> int:
    """How many of the ranks are on this host: all, unless torchrun has started some elsewhere."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if joins() else config.ranks


def warn(config: Config) -> list[str]:
    """What a valid configuration should be told about, a sentence each."""
    found = []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = ranks_here(config)
    if config.device.name == "cpu" and here * config.device.threads > cores:
        found.append(
            f"ranks={here} compute on {cores} cores: they take turns, so the timings measure "
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


# --- what follows --------------------------------------------------------------------------------


def make_schedule(config: Config) -> Schedule:
    """The schedule that the builder of group `schedule` makes.

    Raises:
        ValueError: a key is unknown or of the wrong type, or the builder refuses the numbers.
    """
    schedule: Schedule = build("schedule", config.schedule, ranks=config.ranks, chunks=config.chunks)
    return schedule


def make_partition(config: Config, stages: int) -> Partition:
    """The partition that the builder of group `partition` makes.

    Raises:
        ValueError: a key is unknown or of the wrong type, or the builder refuses the numbers.
    """
    partition: Partition = build("partition", config.partition, layers=config.model.layers, stages=stages)
    return partition


def make_plan(config: Config) -> Plan:
    """What a rank needs to know. The configuration is valid."""
    schedule = make_schedule(config)
    return Plan(
        run_id=run_id(config),
        schedule=schedule,
        partition=make_partition(config, schedule.stages),
        model=config.model,
        checkpointing=config.checkpointing,
        data=config.data,
        device=config.device,
        backend=config.comms.backend(config.device.name),
        timeout_s=config.comms.timeout_s,
        batch_size=config.batch_size,
        steps=config.steps,
        warmup_steps=config.warmup_steps,
        learning_rate=config.learning_rate,
        seed=config.seed,
    )


def run_id(config: Config) -> str:
    """`<schedule>-m<chunks>-k<ranks>-<hash8>`: the same question has the same name.

    The hash is over all keys but those of `NOT_ASKED`, and over the order that follows from
    them, which may stand in a file.
    """
    question = {key: value for key, value in asdict(config).items() if key not in NOT_ASKED}
    question["order"] = to_text(make_schedule(config))
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
    return f"{config.schedule['name']}-m{config.chunks}-k{config.ranks}-{digest[:8]}"


def to_yaml(config: Config) -> str:
    """The resolved configuration as Hydra would read it."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))
