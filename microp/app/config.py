"""Reads what Hydra composed into typed plain dataclasses.

::

    conf/*.yaml + command line ── Hydra ──► DictConfig ── read_config ──► Config

Defaults are only in `conf/`. The options of most groups are dataclasses of `microp.settings`;
`schedule` and `partition` name a builder, whose signature is the schema of their keys. A new
schedule or partition is therefore a function and a YAML file.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from microp.app.errors import ConfigError
from microp.app.expressions import evaluate
from microp.app.hydra_problems import REFUSED, hydra_problems, in_a_line, option_problems
from microp.app.places import CONF
from microp.settings import (
    BucketSettings,
    Checkpointing,
    CommsSettings,
    DataSettings,
    DeviceSettings,
    EmulatedSettings,
    EngineSettings,
    GptSettings,
    LaunchSettings,
    MlpSettings,
    ModelSettings,
    SyncSettings,
    SyntheticSettings,
    TextSettings,
    TrackingSettings,
)


@dataclass
class Config:
    """The configuration of one run; `conf/base.yaml` explains each key."""

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
    model: ModelSettings = MISSING
    partition: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    checkpointing: Checkpointing = MISSING
    engine: EngineSettings = MISSING
    sync: SyncSettings = MISSING
    data: DataSettings = MISSING
    device: DeviceSettings = MISSING
    comms: CommsSettings = MISSING
    tracking: TrackingSettings = MISSING
    launch: LaunchSettings = MISSING


@dataclass
class CostsConfig:
    """Costs given by hand; `conf/simulate.yaml` explains each key."""

    forward: Any = MISSING
    backward: Any = MISSING
    weight: Any = MISSING
    recompute: Any = MISSING
    latency: Any = MISSING
    boundary: Any = MISSING
    bandwidth: Any = MISSING
    reduction: Any = MISSING
    transfer: str = MISSING

    def numbers(self) -> dict[str, Any]:
        """Return all values except `transfer`, the rule by which a hop is charged."""
        return {key: value for key, value in vars(self).items() if key != "transfer"}


@dataclass
class SimulateConfig(Config):
    """A run's configuration and the keys that only a price needs."""

    costs: CostsConfig = MISSING
    output: str = MISSING


SCHEMAS: dict[str, type] = {
    "model/mlp": MlpSettings,
    "model/gpt": GptSettings,
    "data/text": TextSettings,
    "data/synthetic": SyntheticSettings,
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
    "simulate": SimulateConfig,
}


def register_schemas() -> None:
    """Register the schemas and the resolvers with Hydra; must be called before it composes anything."""
    store = ConfigStore.instance()
    for path, schema in SCHEMAS.items():
        *folders, name = path.split("/")
        store.store(group="/".join(("schema", *folders)), name=name, node=schema)
    OmegaConf.register_new_resolver("option_list", option_list, replace=True)
    OmegaConf.register_new_resolver("calc", lambda text: evaluate(str(text)), replace=True)


def option_list() -> str:
    """Return the groups of `conf/`, their options, and the first line of each option's file, as text for `--help`."""
    lines = []
    for group in sorted(path for path in CONF.iterdir() if path.is_dir()):
        lines.append(f"  {group.name}")
        for option in sorted(group.glob("*.yaml")):
            comment = option.read_text().splitlines()[0].removeprefix("# ")
            lines.append(f"    {option.stem:16} {comment}")
    return "\n".join(lines)


def read_config(config: DictConfig) -> Config:
    """Return the composed configuration, with or without Hydra's own part, as plain dataclasses.

    Raises:
        ConfigError: a key has no value, or a value of the wrong type.
    """
    config = copy.deepcopy(config)
    with read_write(config), open_dict(config):
        config.pop("hydra", None)
    try:
        if missing := OmegaConf.missing_keys(config):
            raise ConfigError([f"{key} has no value: set {key}=..." for key in sorted(missing)])
        result = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ConfigError([in_a_line(error)]) from error
    if not isinstance(result, Config):
        raise ConfigError(["this is not the configuration of a run: let its defaults list begin with `config`"])
    return result


def compose_config(*overrides: str, name: str = "config") -> DictConfig:
    """Return the configuration that these overrides give on the command line.

    Args:
        overrides: as typed, for example `schedule=1f1b`.
        name: the primary configuration, `config` for a run or `simulate` for a price.

    Raises:
        ConfigError: a key or an option does not exist, or a value has the wrong type.
    """
    if found := option_problems(overrides):
        raise ConfigError(found)
    register_schemas()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose(name, list(overrides))
    except REFUSED as error:
        raise ConfigError(hydra_problems(error)) from error


def plain(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values."""
    return asdict(config)


def to_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML that Hydra can read."""
    return OmegaConf.to_yaml(OmegaConf.create(plain(config)))
