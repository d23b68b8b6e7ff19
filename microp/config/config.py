"""Composes configurations through Hydra's public functions, and reads them into typed plain dataclasses.

::

    conf/*.yaml + command line ── Hydra ──► DictConfig ── read_composed ──► Config, keys that its options lack

All points of a sweep are composed before the first one runs::

    schedule=gpipe,interleaved schedule.stages_per_rank=4
        │ itertools.product of the axes
        ▼
    schedule=gpipe        ── hydra.compose ──► configuration ┐  values are set in a copy of it: a configuration is
    schedule=interleaved  ── hydra.compose ──► configuration ┘  composed once per combination of options

Defaults are only in `conf/`. Hydra checks the keys and the types outside of the groups; those of an option are checked
here, by its settings class or by its builder's signature.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from functools import cache
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.conf import OverridesConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from simpleeval import EvalWithCompoundTypes, InvalidExpression
from yaml import YAMLError

from microp.config import schema
from microp.config.errors import REFUSED, ConfigError, refusal, typed_words
from microp.config.factory import keys_of_builder, own_model, typed
from microp.config.knobs import Knobs, Unused, without_unused
from microp.settings import quoted
from microp.system import CONF, SWEEPS, override, redact_values, see_current_folder

MOST_POINTS = 100_000  # each is composed and checked before the first one runs
# The environment variables that a configuration may read, because whatever it holds is written to files.
VARIABLES = (
    *("HOME", "USER", "LOGNAME", "HOSTNAME", "PWD", "TMPDIR", "SCRATCH", "WORK", "DATA"),
    *("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_SUBMIT_DIR", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR"),
)
# The names of an expression, YAML's and Python's; there are no other names, and no functions.
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


# --- what Hydra is told -----------------------------------------------------------------------------


class StoredSweeps(SearchPathPlugin):
    """Lets Hydra find the stored sweeps, after `conf/` and `-cd FOLDER`: `-cn first` reads `sweeps/first.yaml`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        typed = typed_words()
        if typed.config_name is None:
            return  # their groups would appear in the tab completion of other commands
        if typed.config_dir:
            search_path.append("command-line", f"file://{Path(typed.config_dir).absolute()}")
        search_path.append("stored sweeps", f"file://{SWEEPS}")


def typed_folder() -> list[str]:
    """Return the words `-cd FOLDER` if a folder of options was typed; commands that are printed begin with them."""
    folder = typed_words().config_dir
    return ["-cd", folder] if folder else []


def options_folder() -> list[str]:
    """Return the words `-cd FOLDER` for commands without `-cn`: a file's own search path comes first, as a plan's."""
    words = typed_words()
    path = Path(words.config_dir or "") / f"{words.config_name}.yaml"
    places = OmegaConf.select(OmegaConf.load(path), "hydra.searchpath") if path.is_file() else None
    return ["-cd", places[0].removeprefix("file://")] if places else typed_folder()


@cache
def register(name: str = "config") -> None:
    """Register what Hydra needs to compose `conf/<name>.yaml`: its schema, the resolvers and the stored sweeps.

    The other schemas are left out, because Hydra copies all that are registered for each configuration.
    """
    ConfigStore.instance().store(group="schema", name=name, node=schema.open_schema(schema.KINDS[name]))
    OmegaConf.register_new_resolver("calc", lambda *parts: evaluate(",".join(map(str, parts))), replace=True)
    Plugins.instance().register(StoredSweeps)


def evaluate(text: str) -> Any:
    """Return the value of an expression in a configuration, `skip: ${calc:'"${schedule.name}" == "naive"'}`.

    OmegaConf has inserted the values. simpleeval bounds what is computed; what it refuses is a ValueError.
    """
    try:
        return EvalWithCompoundTypes(names=WORDS, functions={}).eval(text.strip())
    except (InvalidExpression, SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"cannot compute {text!r}: {error or 'it is nested too deeply'}") from None


# --- words to configurations ------------------------------------------------------------------------


def with_profiles(words: Sequence[str]) -> list[str]:
    """Return a command's words with `device=emulated profile=FILE` for `device=FILE`; a file's name ends in .yaml."""
    replaced = []
    for word in words:
        key, _, value = word.partition("=")
        is_profile = key == "device" and all(file.endswith((".yaml", ".yml")) for file in value.split(","))
        replaced += ["device=emulated", f"profile={value}"] if is_profile else [word]
    return replaced


def word_problems(words: Sequence[str]) -> list[str]:
    """Return which overrides Hydra takes although the record would not say what ran, one sentence each."""
    problems = []
    for word in words:
        key = word.lstrip("+~").partition("=")[0]  # `chunks` of `++chunks=3`
        group, _, knob = key.partition(".")
        if word.startswith(("+", "~")):
            problems.append(f"{quoted(word)}: no key is added or taken away, write {key}=VALUE with a key of --help")
        elif group in schema.GROUPS and not knob and word.endswith("]"):
            values = word.partition("=")[2].strip("[]")
            each = f"-m {key}={values} for a run of each, in a file {key}: {values} below hydra.sweeper.params"
            problems.append(f"{quoted(word)} is several options: use {each}, in Python microp.sweep")
        elif group in schema.GROUPS and schema.is_fixed(group, knob):
            problems.append(f"{quoted(word)} cannot be set, it says which option was chosen: use {group}=OPTION")
    return problems


def lost_keys() -> list[str]:
    """Return that the file that was typed loses its own keys, if its defaults list names the base behind `_self_`."""
    typed = typed_words()
    file = Path(typed.config_dir or SWEEPS, f"{typed.config_name}.yaml")
    with suppress(OSError, YAMLError, OmegaConfBaseException, TypeError, AttributeError):  # Hydra says what it is
        loaded: Any = OmegaConf.load(file)
        names = [name for name in loaded.get("defaults") if name in ("_self_", *schema.KINDS)]
        if names[:1] == ["_self_"] != names:
            told = f"In '{typed.config_name}': _self_ stands before `{names[1]}`, which sets the file's keys again"
            return [f"{told}: let _self_ be the last"]
    return []


@contextmanager
def composer(folder: Path | None = None) -> Iterator[list[str]]:
    """Set up Hydra for `compose`, and yield the overrides by which it finds a user's own folder of options."""
    with initialize_config_dir(str(CONF), job_name="microp", version_base="1.3"):
        yield [] if folder is None else [f"hydra.searchpath=[{override('', f'file://{folder.absolute()}')[1:]}]"]


def compose_config(*overrides: str, name: str = "config", folder: Path | str | None = None) -> DictConfig:
    """Return the configuration that these overrides give on the command line.

    Args:
        overrides: as typed, for example `schedule=1f1b`.
        name: the primary configuration, `config` for a run or `simulate` for a price.
        folder: of the user's own options, as after `-cd` on the command line.

    Raises:
        ConfigError: a key or an option does not exist, a value has the wrong type, or a key is not used.
    """
    if wrong := [word for word in overrides if not isinstance(word, str)]:
        raise ConfigError([f"{quoted(wrong[0])} is no word: give words, as 'schedule=gpipe', or keys"])
    words = with_profiles(overrides)
    if problems := word_problems(words):
        raise ConfigError(problems)
    if folder is not None:
        see_current_folder()
    register(name)
    knobs = Knobs()
    try:
        given = OverridesParser.create().parse_overrides(words)
        values = [word for word in given if _is_value(word)]
        options = tuple(str(word.input_line) for word in given if word not in values)
        base = _of_options(name, options) if folder is None else _composed(name, options, Path(folder))
        config = _with_values(base, values)
        knobs.add(*read_composed(config))
    except REFUSED as error:
        raise ConfigError(refusal(error)) from error
    if knobs.problems:
        raise ConfigError(knobs.problems)
    return config


def _composed(name: str, options: tuple[str, ...], folder: Path | None = None) -> DictConfig:
    with composer(folder) as searched:
        return compose(name, [*searched, *options])


_of_options = cache(_composed)  # those of `conf/`, which does not change


def _is_value(word: Override) -> bool:
    """Return whether an override only sets a value, and so is none that Hydra composes with or refuses."""
    key, changes = word.key_or_group, word.type is OverrideType.CHANGE and not word.is_sweep_override()
    return (
        changes and word.package is None and key not in schema.GROUPS and not key.startswith("hydra") and "/" not in key
    )


def _with_values(config: DictConfig, values: Iterable[Override]) -> DictConfig:
    """Return a copy of a configuration in which these values are set."""
    node = copy.deepcopy(config)
    for word in values:
        OmegaConf.update(node, word.key_or_group, word.value())
    return node


def is_basic(sweeper: DictConfig) -> bool:
    """Return whether a sweeper is Hydra's own, whose points are known before the first one runs."""
    return bool(sweeper._target_.endswith(".BasicSweeper"))


def typed_overrides(overrides: OverridesConf) -> list[str]:
    """Return the overrides of a command or a point as they were typed; an interpolation in them is not resolved."""
    typed = OmegaConf.to_container(overrides.task, resolve=False)
    assert isinstance(typed, list)
    return typed


class Composed(NamedTuple):
    """One point of a command as it was composed."""

    overrides: list[str]  # the overrides that were typed for it
    config: DictConfig | None  # the configuration; None if it cannot be composed
    problems: list[str]  # why not, one sentence per problem


def compose_points(config: DictConfig) -> list[Composed]:
    """Return the points of a sweep, also those that cannot be composed; none if the sweeper is not Hydra's basic one.

    An error of `REFUSED` if its axes cannot be read, or give no point, or too many.
    """
    if not is_basic(config.hydra.sweeper):
        return []
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(config_loader=loader)
    stored = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    overrides = parser.parse_overrides([*stored, *typed_overrides(config.hydra.overrides)])
    axes = {axis.get_key_element(): _words_of(axis) for axis in overrides}
    if (number := prod(map(len, axes.values()))) > MOST_POINTS or not number:
        count = f"{number} points or more" if number else "no point"
        raise ConfigError([f"the sweep has {count}: use 1 to {MOST_POINTS}"])
    groups = {key for key in axes if loader.get_group_options(key.partition("@")[0], ObjectType.CONFIG)}
    values = {word: parser.parse_overrides([word])[0] for key in axes.keys() - groups for word in axes[key]}
    composed: dict[tuple[str, ...], DictConfig] = {}
    points = []
    for words in product(*axes.values()):
        options = tuple(word for word in words if word not in values)
        try:
            if problems := word_problems(words):
                raise ConfigError(problems)
            if options not in composed:
                composed[options] = compose(config.hydra.job.config_name, [*config.hydra.overrides.hydra, *options])
            node = _with_values(composed[options], (values[word] for word in words if word in values))
            points.append(Composed(list(words), node, []))
        except REFUSED as error:
            points.append(Composed(list(words), None, refusal(error)))
    return points


def _words_of(axis: Override) -> list[str]:
    """Return the overrides of one axis, as Hydra's sweeper writes them: one per value."""
    if axis.is_sweep_override() and not axis.is_discrete_sweep():
        raise ConfigError([f"{quoted(axis.input_line)} is for a sweeper that chooses values itself: list the values"])
    values = axis.sweep_string_iterator() if axis.is_sweep_override() else [axis.get_value_element_as_str()]
    return [f"{axis.get_key_element()}={value}" for value in islice(values, MOST_POINTS + 1)]


# --- configurations to dataclasses, and back --------------------------------------------------------


def read_config(config: DictConfig) -> schema.Config:
    """Return what a composed configuration runs, or raise ConfigError: a key has no value, or one of the wrong type."""
    return what_runs(read_composed(config)[0])


def what_runs(config: schema.Config) -> schema.Config:
    """Return a configuration with unused knobs at their defaults, and with the environment's settings of W&B."""
    result = without_unused(config)
    return replace(result, tracking=result.tracking.resolved())


def read_composed(node: DictConfig) -> tuple[schema.Config, dict[str, Unused]]:
    """Return a composed configuration as plain dataclasses, and the given keys that its options do not have.

    Hydra's own part may be there or not. ConfigError: a key has no value, or a value of the wrong type.
    """
    name = getattr(OmegaConf.get_type(node), "__name__", "")
    kind = next((kind for kind in schema.KINDS.values() if kind.__name__ == name), None)
    if kind is None:
        file = typed_words().config_name or "this"
        raise ConfigError([f"{file} is no configuration of a run: let the file's defaults list begin with `config`"])
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
    for group in schema.GROUPS:
        try:
            values[group], keys = _typed_option(group, values[group])
            lacking |= keys
        except ValueError as error:
            problems += refusal(error)
    if problems:
        raise ConfigError(problems)
    return _with_own_model(kind(**values)), lacking


def _typed_option(group: str, keys: dict[str, Any]) -> tuple[Any, dict[str, Unused]]:
    """Return an option's settings, or its keys if it has a builder, and the given keys that it does not have."""
    has_builder = "builder" in keys or group in ("schedule", "partition")
    if has_builder:
        try:
            known = keys_of_builder(group, keys)
        except (KeyError, ValueError):  # `build` says what is wrong with the builder
            known = set(keys)
    else:
        known = {field.name for field in fields(schema.schema_of(group, keys))}
    used = {key: value for key, value in keys.items() if key in known}
    return used if has_builder else typed(group, schema.schema_of(group, keys), used), _lacking(group, keys, known)


def _lacking(group: str, keys: Mapping[str, Any], known: set[str]) -> dict[str, Unused]:
    """Return the given keys that are not known, each with the nearest of those that are."""
    knobs = sorted(key for key in known if not schema.is_fixed(group, key))
    by = f"{group}={keys.get('name', keys.get('mode'))}"
    has = f"its keys are {', '.join(knobs)}" if knobs else "it has no keys"
    lacking = {}
    for key in keys.keys() - known:
        near = get_close_matches(key, knobs, 1)
        others = [option for option in schema.options_of(group) if key in schema.default_values(group, option)]
        other, has_it = (others[0], "has it") if len(others) == 1 else ("NAME", "have it")
        is_typed = any(word.lstrip("+").startswith(f"{group}.{key}=") for word in sys.argv)
        of_file = f"write `override {group}: {other}` in the file's defaults list"
        how = of_file if typed_words().config_name and not is_typed else f"type {group}={other}"
        of_other = f"; {', '.join(others)} {has_it}: {how}" if others else ""
        remedy = f"did you mean {group}.{near[0]}?" if near else has + of_other
        lacking[f"{group}.{key}"] = Unused(by, remedy, quoted(keys[key]))
    return lacking


def _with_own_model(config: schema.Config) -> schema.Config:
    """Return the configuration with the settings of its model, if that is still the option of a user's own."""
    if isinstance(config.model, dict):
        config.model = own_model(config.model, config.computing, config.device)
    return config


def plain(config: schema.Config) -> dict[str, Any]:
    """Return the configuration as plain values."""
    return {**asdict(config), "model": config.model.asked}


def from_plain(values: Mapping[str, Any]) -> schema.Config:
    """Return the configuration of which `plain` made these values."""
    typed = {group: schema.schema_of(group, values[group]) for group in schema.GROUPS if "builder" not in values[group]}
    keys = {key: typed[key](**value) if key in typed else value for key, value in values.items()}
    return _with_own_model(schema.Config(**keys))


def stored(words: Sequence[str], base: str = "config") -> str:
    """Return a file for `-cn` that asks for what these overrides ask for; `base` is the configuration they change."""
    chosen = OverridesParser.create().parse_overrides(list(words))
    options = [{f"override {word.key_or_group}": word.value()} for word in chosen if word.key_or_group in schema.GROUPS]
    node = OmegaConf.create({"defaults": [base, *options, "_self_"]})
    if folder := typed_words().config_dir:
        OmegaConf.update(node, "hydra.searchpath", [f"file://{Path(folder).absolute()}"])
    for word in chosen:
        if word.key_or_group not in schema.GROUPS:
            OmegaConf.update(node, word.key_or_group, word.value())
    return OmegaConf.to_yaml(node)


def to_yaml(config: schema.Config) -> str:
    """Return the resolved configuration as YAML that Hydra can read, without secrets."""
    return OmegaConf.to_yaml(OmegaConf.create(redact_values(plain(config))))
