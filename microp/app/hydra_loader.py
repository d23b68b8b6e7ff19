"""Loads configurations as Hydra does, and refuses those whose record would not say what ran.

::

    overrides ── Loader ──► DictConfig    no key is added or taken away, every option has its file's name
                       └──► ConfigError   all problems, not only the first one

A point of a sweep does without the keys that its options lack: of `-m schedule=gpipe,interleaved
schedule.stages_per_rank=4`, the point of GPipe has no `stages_per_rank`. `knobs` says so to the user, and refuses
a key that no point uses.

A point of a sweep runs as it was planned: when its turn comes it is read from the sweep's plan and not composed again,
because the files of `conf/` may have changed since it was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydra._internal import hydra as hydra_module
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ConfigDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from microp.app.errors import ConfigError, Rest
from microp.app.hydra_pace import QuickLoader, parsed, quicken
from microp.app.hydra_problems import (
    REFUSED,
    key_of,
    no_option,
    no_run,
    not_used,
    taken_away,
    unknown_key,
    use_one,
    word_problems,
)
from microp.app.option_files import OptionFiles
from microp.app.schema import FIXED, GROUPS, Config
from microp.app.schema_keys import all_keys, wrong_keys
from microp.app.truth_values import refuse_numbers
from microp.settings import quoted

Load = Callable[[list[str]], DictConfig]


def current() -> Loader:
    """Return the loader of the command, or of the configuration that is being composed."""
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, Loader)
    return loader


def install() -> None:
    """Let Hydra load configurations with `Loader`, quicker and stricter; it has no public way to choose its loader."""
    vars(hydra_module)["ConfigLoaderImpl"] = Loader
    quicken()
    refuse_numbers()


class Loader(QuickLoader):
    """Hydra's loader; it raises `ConfigError` with all problems of the overrides."""

    repository: OptionFiles

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = OptionFiles(config_search_path)

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        def load(words: list[str]) -> DictConfig:
            loaded = super(Loader, self).load_configuration(
                config_name, words, run_mode, from_shell, validate_sweep_overrides
            )
            if config_name and not _is_of_a_run(loaded):
                raise ConfigError([no_run(config_name)])
            return loaded

        with suppress(*REFUSED):
            config = load(overrides)
            if run_mode is RunMode.MULTIRUN or not self._problems_of(config):
                return config
        config, good, found = self._without_bad(load, overrides, run_mode)
        if run_mode is RunMode.MULTIRUN:  # each point is loaded later, and says itself what is wrong with it
            config.hydra.overrides.task = [word for word in overrides if not _is_hydra_s(word)]
            if problems := [problem for word in found if _is_hydra_s(word) for problem in found[word]]:
                raise ConfigError(problems)
            return config
        problems = [problem for each in found.values() for problem in each] + self._problems_of(config)
        raise ConfigError(list(dict.fromkeys(problems)), [Rest(good, config, [key_of(word) for word in found])])

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return a point of a sweep as it was planned; one that was not is composed now, for the same folder."""
        from microp.store import plan_in  # imported late: --help and TAB do without it

        folder = str(master_config.hydra.sweep.dir)
        if (point := plan_in(Path(folder)).find(sweep_overrides)) is not None:
            return _as_planned(master_config, point)
        config = self.compose_point(master_config, sweep_overrides)
        config.hydra.sweep.dir = folder
        return config

    def compose_point(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return a point of a sweep, composed from the files as they are now."""
        options, values = self.split(sweep_overrides)
        if not any(_in_group(key_of(word)) for word in values):
            return super().load_sweep_config(master_config, sweep_overrides)
        choices = dict(super().load_sweep_config(master_config, options).hydra.runtime.choices)
        own = [word for word in sweep_overrides if word in options or not self.is_other_s(key_of(word), choices)]
        return super().load_sweep_config(master_config, own)

    def split(self, words: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the overrides that choose an option, and those that set a value."""
        options: list[str] = []
        values: list[str] = []
        for word in words:
            chooses = self.repository.group_exists(key_of(word).partition("@")[0])
            (options if chooses else values).append(word)
        return options, values

    def apply(self, node: DictConfig, choices: dict[str, Any], words: Sequence[str]) -> None:
        """Set the values of one point, less those of keys that its options lack.

        Raises:
            ConfigError: a key or a value is wrong; its `problems` lists all problems.
        """
        found = []
        for word in words:
            if not self.is_other_s(key_of(word), choices):
                try:
                    self._apply_overrides_to_config(parsed(word), node)
                except REFUSED as error:
                    found += word_problems(word, error)
        if found := found + self.problems(node, choices):
            raise ConfigError(found)

    def problems(self, config: DictConfig, choices: dict[str, Any]) -> list[str]:
        """Return the keys that were added or taken away, and the names of options that were changed, in sentences."""
        if not _is_of_a_run(config):
            return []  # Hydra's own, for its help
        other_s = [
            (f"{group}.{key}", config[group][key])
            for group in GROUPS
            if group in config and isinstance(config[group], DictConfig)
            for key in all_keys(config[group])
            if self.is_other_s(f"{group}.{key}", choices)
        ]
        found = [self._other_s(f"{key}={quoted(value)}", choices) for key, value in other_s]
        found += wrong_keys(config, {key for key, _ in other_s})
        for group in GROUPS:
            if choices.get(group) and not self.repository.has_option(group, choices[group]):
                found.append(no_option(group, choices[group], self.options(group)))
            option = self.option(group, choices.get(group))
            node = None if group not in config or OmegaConf.is_missing(config, group) else config[group]
            if not option or not isinstance(node, DictConfig):
                continue
            found += [
                taken_away(f"{group}.{key}")
                for key in option
                if key not in all_keys(node) and not is_dataclass(OmegaConf.get_type(node))
            ]
            for key in FIXED & option.keys() & node.keys():
                if (value := node[key]) != option[key]:
                    others = [each for each in self.options(group) if self.option(group, each).get(key) == value]
                    use = f"use {group}={others[0]}" if others else f"use one of {', '.join(self.options(group))}"
                    found.append(f"{group}.{key}={quoted(value)} cannot be set, it says which option was chosen: {use}")
        return found

    def options(self, group: str) -> list[str]:
        """Return the names of a group's options; its folders are listed once."""
        known: dict[str, list[str]] = vars(self).setdefault("_listed", {})
        if group not in known:
            known[group] = list(self.repository.get_group_options(group))
        return known[group]

    def options_with(self, key: str) -> list[str]:
        """Return the options of a group that have a key, for example of `schedule.stages_per_rank`."""
        group, _, knob = key.partition(".")
        return [each for each in self.options(group) if knob.partition(".")[0] in self.option(group, each)]

    def is_other_s(self, key: str, choices: dict[str, Any]) -> bool:
        """Return whether a key is not of the chosen option of its group, but of another one."""
        if not _in_group(key):
            return False
        group, _, knob = key.partition(".")
        if knob.partition(".")[0] in self.option(group, choices.get(group)):
            return False  # the common case, without reading the files of the other options
        having = self.options_with(key)
        return bool(having) and self.repository.has_option(group, choices.get(group)) and choices[group] not in having

    def option(self, group: str, name: str | None) -> dict[str, Any]:
        """Return the keys of an option's file with their values, less those of its schema; none without a file."""
        known: dict[tuple[str, str | None], dict[str, Any]] = vars(self).setdefault("_known", {})
        if (group, name) not in known:
            loaded = None
            if name:
                with suppress(ConfigError):  # a file that cannot be read is told where it is chosen
                    loaded = self.repository.load_config(f"{group}/{name}")
            keys: dict[str, Any] = {}
            if loaded is not None:
                own = OmegaConf.to_container(loaded.config, resolve=False)
                for default in loaded.defaults_list or [ConfigDefault(path="_self_")]:
                    path = default.path if isinstance(default, ConfigDefault) else None
                    if path and path != "_self_" and not path.startswith("/"):
                        keys |= self.option(group, path)
                    elif path == "_self_" and isinstance(own, dict):
                        keys |= {str(key): value for key, value in own.items()}
            known[group, name] = keys
        return known[group, name]

    def _problems_of(self, config: DictConfig) -> list[str]:
        return self.problems(config, dict(config.hydra.runtime.choices))

    def _without_bad(
        self, load: Load, words: list[str], run_mode: RunMode
    ) -> tuple[DictConfig, list[str], dict[str, list[str]]]:
        """Return what can be composed, with which overrides, and the problems of each override that was left out.

        Raises what Hydra raises if the files themselves cannot be composed.
        """
        good: list[str] = []
        config, found = load(good), {}
        in_files = self._problems_of(config)
        options, values = self.split(words)
        for word in options + values:
            try:
                tried = load([*good, word])
                more = [] if run_mode is RunMode.MULTIRUN else self._problems_of(tried)
                if new := [problem for problem in more if problem not in in_files]:
                    found[word] = new
                    continue
                config = tried
                good.append(word)
            except REFUSED as error:
                group = key_of(word).partition(".")[0]
                if not (_in_group(key_of(word)) and any(key_of(each) == group for each in found)):
                    found[word] = self._said(word, error, config)  # else the option of which it is a key was refused
        return config, good, found

    def _other_s(self, word: str, choices: dict[str, Any]) -> str:
        """Return that a key is of another option than the chosen one."""
        key = key_of(word)
        group = key.partition(".")[0]
        return not_used(word, f"{group}={choices[group]}", use_one(group, self.options_with(key)))

    def _said(self, word: str, error: BaseException, config: DictConfig) -> list[str]:
        key, value = key_of(word), word.partition("=")[2]
        if value == "null" and key in GROUPS:
            return [f"{key}=null: {key} needs an option: use one of {', '.join(self.options(key))}"]
        if key in GROUPS and (isinstance(error, MissingConfigException) or "Config group override" in str(error)):
            return [no_option(key, value, self.options(key))]
        if word.startswith("~") and OmegaConf.select(config, key) is not None:
            return [taken_away(key)]
        if value and "." not in key and key not in config and not self.repository.group_exists(key):
            return [unknown_key(key, config, value)]
        if not word.startswith(("+", "~")) and self.is_other_s(key, choices := dict(config.hydra.runtime.choices)):
            return [self._other_s(word, choices)]
        return word_problems(word, error)


def _in_group(key: str) -> bool:
    group, dot, _ = key.partition(".")
    return bool(dot) and group in GROUPS


def _is_of_a_run(config: DictConfig) -> bool:
    return issubclass(OmegaConf.get_type(config) or object, Config)


def _is_hydra_s(word: str) -> bool:
    try:
        [override] = parsed(word)
        return override.is_hydra_override()
    except OverrideParseException:
        return False


def _as_planned(master_config: DictConfig, point: dict[str, Any]) -> DictConfig:
    """Return a planned point with Hydra's part of the sweep's configuration."""
    config = OmegaConf.masked_copy(master_config, "hydra")  # a deep copy, of this part only
    OmegaConf.copy_cache(from_config=master_config, to_config=config)
    config.hydra.overrides.task = point["overrides"]
    config.update(point.get("config", {}))
    return config
