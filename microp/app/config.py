"""Reads what Hydra composed into typed plain dataclasses.

::

    conf/*.yaml + command line ── Hydra ──► DictConfig ── read_config ──► Config

Defaults are only in `conf/`. The options of most groups are dataclasses of `microp.settings`;
`schedule`, `partition` and a user's own model name a builder, whose signature is the schema of their keys. A
new one is therefore a function and a YAML file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from microp.app.environment import environment_problems
from microp.app.errors import ConfigError
from microp.app.expressions import evaluate
from microp.app.hydra_loader import install
from microp.app.hydra_pace import copied
from microp.app.hydra_problems import REFUSED, hydra_problems, in_a_line, option_problems
from microp.app.knobs import Knobs, schema_of, without_unused
from microp.app.model_factory import own_model
from microp.app.places import CONF
from microp.app.schema import GROUPS, SCHEMAS, Config
from microp.settings import ModelSettings, TrackingSettings, quoted, redact_values


@cache
def register_schemas() -> None:
    """Register the schemas, the resolvers and the loader with Hydra; must be called before it composes anything."""
    install()
    store = ConfigStore.instance()
    for path, schema in SCHEMAS.items():
        *folders, name = path.split("/")
        store.store(group="/".join(("schema", *folders)), name=name, node=schema)
    OmegaConf.register_new_resolver("calc", lambda *parts: evaluate(",".join(map(str, parts))), replace=True)


def read_config(config: DictConfig) -> Config:
    """Return what a composed configuration runs, as plain dataclasses.

    Raises:
        ConfigError: a key has no value, or a value of the wrong type.
    """
    return what_runs(read_composed(config))


def what_runs(config: Config) -> Config:
    """Return a configuration with unused knobs at their defaults, and with the environment's settings of W&B."""
    result = without_unused(config)
    result.tracking = result.tracking.resolved()
    return result


def read_composed(config: DictConfig) -> Config:
    """Return the composed configuration, with or without Hydra's own part, as plain dataclasses.

    Raises:
        ConfigError: a key has no value, or a value of the wrong type.
    """
    config = copied(config)
    with read_write(config), open_dict(config):
        config.pop("hydra", None)
    text = str(OmegaConf.to_container(config, resolve=False))
    if found := environment_problems(text):
        raise ConfigError(found)
    try:
        if "???" in text and (missing := OmegaConf.missing_keys(config)):
            raise ConfigError([f"{key} has no value: set {key}=..." for key in sorted(missing)])
        result = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ConfigError([in_a_line(error)]) from error
    assert isinstance(result, Config), "the loader refuses others"
    if isinstance(result.model, dict):
        result.model = own_model(result.model, result.computing)
    elif not isinstance(result.model, ModelSettings):
        given = "null" if result.model is None else quoted(result.model)
        raise ConfigError([f"model={given}: model needs a value: give one, or leave the key out for its default"])
    return result


def tracking_of(config: DictConfig) -> TrackingSettings:
    """Return the settings of tracking in a composed configuration, with the environment's values."""
    settings = OmegaConf.to_object(config.tracking)
    assert isinstance(settings, TrackingSettings)
    return settings.resolved()


def with_profiles(words: Sequence[str]) -> list[str]:
    """Return a command's words with `device=emulated profile=FILE` for `device=FILE`; a file's name ends in .yaml."""
    found = []
    for word in words:
        key, _, value = word.partition("=")
        is_profile = key == "device" and all(each.endswith((".yaml", ".yml")) for each in value.split(","))
        found += ["device=emulated", f"profile={value}"] if is_profile else [word]
    return found


def compose_config(*overrides: str, name: str = "config") -> DictConfig:
    """Return the configuration that these overrides give on the command line.

    Args:
        overrides: as typed, for example `schedule=1f1b`.
        name: the primary configuration, `config` for a run or `simulate` for a price.

    Raises:
        ConfigError: a key or an option does not exist, a value has the wrong type, or a key is not used.
    """
    if found := option_problems(overrides):
        raise ConfigError(found)
    overrides = tuple(with_profiles(overrides))
    register_schemas()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose(name, list(overrides))
            knobs = Knobs()
            knobs.add(overrides, read_composed(config))
    except ConfigError:
        raise
    except REFUSED as error:
        raise ConfigError(hydra_problems(error)) from error
    if knobs.problems:
        raise ConfigError(knobs.problems)
    return config


def plain(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values."""
    return {**asdict(config), "model": config.model.asked}


def from_plain(values: Mapping[str, Any]) -> Config:
    """Return the configuration of which `plain` made these values."""
    typed = {
        group: schema_of(group, keys) for group, keys in values.items() if group in GROUPS and "builder" not in keys
    }
    result = Config(**{key: typed[key](**value) if key in typed else value for key, value in values.items()})
    if isinstance(result.model, dict):
        result.model = own_model(result.model, result.computing)
    return result


def to_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML that Hydra can read, without secrets."""
    return OmegaConf.to_yaml(OmegaConf.create(redact_values(plain(config))))
