"""Configurations as a user types them, and what is said of them."""

from hydra import compose
from omegaconf import DictConfig

from microp.config import Config, ConfigError, compose_config, config_checks, make_job, read_config


def config(*overrides: str) -> Config:
    return read_config(compose_config(*overrides))


def problems(config: Config) -> list[str]:
    """Everything that keeps a configuration from being run."""
    try:
        make_job(config)
    except ConfigError as error:
        return error.problems
    return []


def warnings(config: Config) -> list[str]:
    return config_checks.warnings(config, make_job(config))


def sweep_of(*words: str, name: str = "config") -> DictConfig:
    """What Hydra's callback is given for `microp -m WORDS`; a composer must be open."""
    config = compose(name, ["hydra.mode=MULTIRUN"], return_hydra_config=True)
    config.hydra.overrides.task = list(words)
    return config
