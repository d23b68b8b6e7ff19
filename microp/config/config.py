"""Reads what Hydra composed into typed plain dataclasses.

::

    conf/*.yaml + command line ── Hydra ──► DictConfig ── read_composed ──► Config, keys that its options lack

Defaults are only in `conf/`. Hydra checks the keys and the types outside of the groups; those of an option are checked
here, by its settings class or by its builder's signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from simpleeval import EvalWithCompoundTypes, InvalidExpression

from microp.config.composing import StoredSweeps, composer, word_problems
from microp.config.errors import REFUSED, ConfigError, first_line, refusal
from microp.config.factory import keys_of_builder
from microp.config.knobs import Knobs, Unused, without_unused
from microp.config.model_factory import own_model
from microp.config.schema import GROUPS, KINDS, Config, is_fixed, open_schema, schema_of
from microp.settings import quoted
from microp.system import redact_values, see_current_folder

# The environment variables that a configuration may read, because whatever it holds is written to files.
VARIABLES = (
    *("HOME", "USER", "LOGNAME", "HOSTNAME", "PWD", "TMPDIR", "SCRATCH", "WORK", "DATA"),
    *("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_SUBMIT_DIR", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR"),
)


# The names of an expression, YAML's and Python's; there are no other names, and no functions.
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def evaluate(text: str) -> Any:
    """Return the value of an expression in a configuration, `skip: ${calc:'"${schedule.name}" == "naive"'}`.

    OmegaConf has inserted the values. simpleeval bounds what is computed; what it refuses is a ValueError.
    """
    try:
        return EvalWithCompoundTypes(names=WORDS, functions={}).eval(text.strip())
    except (InvalidExpression, SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"cannot compute {text!r}: {error or 'it is nested too deeply'}") from None


@cache
def register(name: str = "config") -> None:
    """Register what Hydra needs to compose `conf/<name>.yaml`: its schema, the resolvers and the stored sweeps.

    The other schemas are left out, because Hydra copies all that are registered for each configuration.
    """
    ConfigStore.instance().store(group="schema", name=name, node=open_schema(KINDS[name]))
    OmegaConf.register_new_resolver("calc", lambda *parts: evaluate(",".join(map(str, parts))), replace=True)
    Plugins.instance().register(StoredSweeps)


def read_config(config: DictConfig) -> Config:
    """Return what a composed configuration runs, or raise ConfigError: a key has no value, or one of the wrong type."""
    return what_runs(read_composed(config)[0])


def what_runs(config: Config) -> Config:
    """Return a configuration with unused knobs at their defaults, and with the environment's settings of W&B."""
    result = without_unused(config)
    return replace(result, tracking=result.tracking.resolved())


def read_composed(node: DictConfig) -> tuple[Config, dict[str, Unused]]:
    """Return a composed configuration as plain dataclasses, and the given keys that its options do not have.

    Hydra's own part may be there or not. ConfigError: a key has no value, or a value of the wrong type.
    """
    name = getattr(OmegaConf.get_type(node), "__name__", "")
    kind = next((kind for kind in KINDS.values() if kind.__name__ == name), None)
    if kind is None:
        raise ConfigError(["this is not the configuration of a run: let the file's defaults list begin with `config`"])
    node = node.copy()
    with read_write(node), open_dict(node):
        node.pop("hydra", None)
    text = str(OmegaConf.to_container(node, resolve=False))
    problems = [
        f"${{oc.env:{name}}} would write an environment variable into the records: "
        f"type its value, or use one of {', '.join(VARIABLES)}"
        for name in dict.fromkeys(re.findall(r"oc\.env:\s*([^,}\s]*)", text))
        if name not in VARIABLES
    ]
    problems += [f"{key} has no value: set {key}=..." for key in sorted(OmegaConf.missing_keys(node))]
    if problems:
        raise ConfigError(problems)
    try:
        values = vars(OmegaConf.to_object(node))
    except OmegaConfBaseException as error:
        raise ConfigError(refusal(error)) from error
    lacking: dict[str, Unused] = {}
    for group in GROUPS:
        try:
            values[group], more = _typed(group, values[group])
            lacking |= more
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    result = kind(**values)
    if isinstance(result.model, dict):
        result.model = own_model(result.model, result.computing, result.device)
    return result, lacking


def _typed(group: str, keys: dict[str, Any]) -> tuple[Any, dict[str, Unused]]:
    """Return an option's settings, or its keys if it has a builder, and the given keys that it does not have."""
    if "builder" in keys or group in ("schedule", "partition"):
        try:
            known = keys_of_builder(group, keys)
        except (KeyError, ValueError):  # `build` says what is wrong with the builder
            known = set(keys)
        return {key: value for key, value in keys.items() if key in known}, _lacking(group, keys, known)
    try:
        kind = schema_of(group, keys)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    known = {field.name for field in fields(kind)}
    node = OmegaConf.structured(kind)
    problems = []
    for key in sorted(known & keys.keys()):
        try:
            node[key] = keys[key]
        except OmegaConfBaseException as error:
            problems.append(f"{group}.{error.full_key or key}: {first_line(error)}")
    if problems:
        raise ConfigError(problems)
    return OmegaConf.to_object(node), _lacking(group, keys, known)


def _lacking(group: str, keys: Mapping[str, Any], known: set[str]) -> dict[str, Unused]:
    own = sorted(key for key in known if not is_fixed(group, key))
    by = f"{group}={keys.get('name', keys.get('mode'))}"
    lacking = {}
    for key in keys.keys() - known:
        near = get_close_matches(key, own, 1)
        has = f"its keys are {', '.join(own)}" if own else "it has no keys"
        remedy = f"did you mean {group}.{near[0]}?" if near else has
        lacking[f"{group}.{key}"] = Unused(by, remedy, quoted(keys[key]))
    return lacking


def with_profiles(words: Sequence[str]) -> list[str]:
    """Return a command's words with `device=emulated profile=FILE` for `device=FILE`; a file's name ends in .yaml."""
    found = []
    for word in words:
        key, _, value = word.partition("=")
        is_profile = key == "device" and all(each.endswith((".yaml", ".yml")) for each in value.split(","))
        found += ["device=emulated", f"profile={value}"] if is_profile else [word]
    return found


def compose_config(*overrides: str, name: str = "config", folder: Path | str | None = None) -> DictConfig:
    """Return the configuration that these overrides give on the command line.

    Args:
        overrides: as typed, for example `schedule=1f1b`.
        name: the primary configuration, `config` for a run or `simulate` for a price.
        folder: of the user's own options, as after `-cd` on the command line.

    Raises:
        ConfigError: there is no such folder, a key or an option does not exist, a value has the wrong type, or a key
            is not used.
    """
    typed = [word for word in overrides if isinstance(word, str) and not word.startswith("-")]
    if problems := [f"{word!r} is not an override, such as 'chunks=8'" for word in overrides if word not in typed]:
        raise ConfigError(problems)
    words = with_profiles(overrides)
    if problems := word_problems(words):
        raise ConfigError(problems)
    if folder is not None:
        if not Path(folder).is_dir():
            raise ConfigError([f"folder={quoted(folder)} is not one: give the folder in which model/ or schedule/ is"])
        see_current_folder()
    register(name)
    knobs = Knobs()
    try:
        with composer(None if folder is None else Path(folder)) as searched:
            config = compose(name, [*searched, *words])
        knobs.add(*read_composed(config))
    except REFUSED as error:
        raise ConfigError(refusal(error)) from error
    if knobs.problems:
        raise ConfigError(knobs.problems)
    return config


def plain(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values."""
    return {**asdict(config), "model": config.model.asked}


def from_plain(values: Mapping[str, Any]) -> Config:
    """Return the configuration of which `plain` made these values."""
    typed = {group: schema_of(group, values[group]) for group in GROUPS if "builder" not in values[group]}
    result = Config(**{key: typed[key](**value) if key in typed else value for key, value in values.items()})
    if isinstance(result.model, dict):
        result.model = own_model(result.model, result.computing, result.device)
    return result


def to_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML that Hydra can read, without secrets."""
    return OmegaConf.to_yaml(OmegaConf.create(redact_values(plain(config))))
