"""Hydra in, a plan out: the typed schema, and what follows from it.

::

    conf/*.yaml + command line ── Hydra ──► DictConfig ── read ──► Config
    Config ── rules.validate ──► all its problems at once
    Config ── make_plan ─► a Plan, which is all that a rank gets

Defaults are in `conf/` and nowhere else. The options of most groups are dataclasses of the
room they belong to; `schedule` and `partition` name a builder, whose signature is the
schema of their keys, so that a new one is a function and a YAML file.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from microp.app.expressions import evaluate
from microp.builder import build
from microp.comms import CommsSettings
from microp.data import Data, Synthetic, Text
from microp.device import DeviceSettings
from microp.emulated import EmulatedSettings
from microp.engine import EngineSettings
from microp.launch import LaunchSettings
from microp.model import Gpt, Mlp, Model
from microp.partition import Partition
from microp.plan import Plan
from microp.records import NOT_ASKED
from microp.replicate import BucketSettings, SyncSettings
from microp.schedule import Schedule
from microp.schedule_io import to_text
from microp.stage import Checkpointing
from microp.tracking import TrackingSettings

CONF = Path(__file__).resolve().parent.parent / "conf"


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
    skip: bool = MISSING
    again: bool = MISSING
    output_dir: str = MISSING
    model: Model = MISSING
    partition: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    checkpointing: Checkpointing = MISSING
    engine: EngineSettings = MISSING
    sync: SyncSettings = MISSING
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
    "engine": EngineSettings,
    "sync": SyncSettings,
    "sync/buckets": BucketSettings,
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
    OmegaConf.register_new_resolver("calc", lambda text: evaluate(str(text)), replace=True)


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
    try:
        if missing := OmegaConf.missing_keys(config):
            raise ConfigError([f"{key} has no value: give one, as {key}=..." for key in sorted(missing)])
        result = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ConfigError([in_a_line(error)]) from error
    assert isinstance(result, Config)
    return result


def in_a_line(error: OmegaConfBaseException) -> str:
    """The key of an error and what is wrong with its value."""
    text = str(error).splitlines()[0].removeprefix("ValueError raised while resolving interpolation: ")
    return f"{error.full_key}: {text}" if error.full_key else text


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
        engine=config.engine,
        sync=config.sync,
        replicas=config.replicas,
    )


def plan_of(*words: str) -> Plan:
    """The plan that these words make on the command line of a run, as `schedule=1f1b`."""
    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return make_plan(read(compose("config", list(words))))


def run_id(config: Config) -> str:
    """`<schedule>-m<chunks>-k<ranks>[-r<replicas>]-<hash8>`: the same question has the same name.

    The hash is over all keys but those of `NOT_ASKED`, and over the order that follows from
    them, which may stand in a file.
    """
    question = {key: value for key, value in asdict(config).items() if key not in NOT_ASKED}
    if config.replicas == 1:
        del question["sync"]  # nothing is to be kept equal
    question["order"] = to_text(make_schedule(config))
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
    copies = f"-r{config.replicas}" if config.replicas > 1 else ""
    return f"{config.schedule['name']}-m{config.chunks}-k{config.ranks}{copies}-{digest[:8]}"


def to_yaml(config: Config) -> str:
    """The resolved configuration as Hydra would read it."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))
