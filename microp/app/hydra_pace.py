"""Makes Hydra compose quicker, by leaving out and remembering what it makes anew for every configuration.

::

    the files of a configuration ── merged (50 ms) ──► keys and values ── overrides ──► configuration
    another option of a group ───── merged (12 ms) ──►
    the same files, unchanged ───── a copy (2 ms) ───►
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar

from hydra import version
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, Node, flag_override, grammar_parser
from omegaconf import base as omegaconf_base
from omegaconf.errors import OmegaConfBaseException

from microp.app.option_files import File

_NO_CHOICES = DictConfig({})
_full_interpolation_map = defaults_list._create_interpolation_map
_parse = lru_cache(maxsize=1000)(grammar_parser.parse)
_version = lru_cache(maxsize=10)(version._get_version)
T = TypeVar("T")
MOST_MERGED = 200  # configurations of some 100 kB, and parts of them, that are kept
HAS_LIST = "HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"  # of a configuration with a list of defaults


def copied(config: T) -> T:
    """Return a deep copy of a configuration; `copy.deepcopy` takes several times as long."""
    result: T = pickle.loads(pickle.dumps(config, pickle.HIGHEST_PROTOCOL))
    return result


@lru_cache(maxsize=1000)
def parsed(word: str) -> list[Override]:
    """Return an override as Hydra reads it, which must not be changed; the points of a sweep have the same few."""
    return OverridesParser.create().parse_overrides([word])


class QuickLoader(ConfigLoaderImpl):
    """Hydra's loader; it merges the same unchanged files once per process, whatever values are set in them then.

    ::

        Hydra's files, the schema ── files of groups, each below its own key ── files with keys of all groups
              once                        once for each option                       every time
    """

    _merged: ClassVar[dict[Hashable, bytes]] = {}

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: Any) -> DictConfig:
        files = [repo.load_config(each.config_path) for each in defaults]
        if not all(isinstance(file, File) for file in files):
            return super()._compose_config_from_defaults_list(defaults, repo)
        states = [(file.state, each.package, each.primary) for file, each in zip(files, defaults, strict=True)]
        return self._once(tuple(states), lambda: self._merge_groups(defaults, files, states, repo))

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what has this key, made now, or a copy of what was made before."""
        if key in self._merged:
            copy: T = pickle.loads(self._merged[key])
            return copy
        made = make()
        if len(self._merged) >= MOST_MERGED:
            self._merged.clear()
        self._merged[key] = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
        return made

    def _merge_groups(
        self, defaults: list[ResultDefault], files: list[File], states: Sequence[Hashable], repo: Any
    ) -> DictConfig:
        """Merge all files in their order, as Hydra does; a group's are merged once for all configurations."""
        everywhere = [number for number, each in enumerate(defaults) if not each.package]
        begin = everywhere[0] + 1 if everywhere else 0
        end = everywhere[1] if len(everywhere) > 1 else len(defaults)
        config = self._once(("first", *states[:begin]), lambda: self._merge(DictConfig({}), defaults[:begin], repo))
        groups: dict[str, list[int]] = {}
        for number in range(begin, end):
            groups.setdefault(str(defaults[number].package).partition(".")[0], []).append(number)
        for group, numbers in groups.items():
            own = [defaults[number] for number in numbers]
            before = [config._get_node(group), *(files[number].config for number in numbers[:-1])]
            if before[0] is None or any("${" in str(each) for each in before):
                self._merge(config, own, repo)  # it may depend on other groups
            else:
                make = partial(self._made, config, group, own, repo)
                node = self._once(("group", *states[:begin], *(states[number] for number in numbers)), make)
                vars(config)["_content"][group] = node
                node._set_parent(config)
        self._merge(config, defaults[end:], repo)
        _drop_lists(config)
        return config

    def _made(self, config: DictConfig, group: str, defaults: list[ResultDefault], repo: Any) -> Node:
        """Merge a group's files, and return the part of the configuration that they are, as a whole of its own."""
        node = self._merge(config, defaults, repo)._get_node(group)
        assert isinstance(node, Node)
        node._set_parent(None)
        return node

    def _merge(self, config: DictConfig, defaults: list[ResultDefault], repo: Any) -> DictConfig:
        """Merge files into a configuration as Hydra does, and return it."""
        with flag_override(config, "no_deepcopy_set_nodes", True):
            for each in defaults:
                loaded = self._load_single_config(each, repo)
                try:
                    config.merge_with(loaded.config)
                except OmegaConfBaseException as error:
                    said = f"{type(error).__name__} raised while composing config:\n{error}"
                    raise ConfigCompositionException(f"In '{each.config_path}': {said}") from None
        return config


def _drop_lists(node: Any) -> None:
    """Remove the lists of defaults that were merged with the keys of their files."""
    if not isinstance(node, DictConfig) or node._is_missing() or node._is_none():
        return
    if node._get_flag(HAS_LIST):
        with flag_override(node, ["readonly", "struct"], False):
            node._set_flag(HAS_LIST, None)
            node.pop("defaults", None)
    for _, value in node.items_ex(resolve=False):
        _drop_lists(value)


def quicken() -> None:
    """Replace three functions of Hydra and of omegaconf, which have no public way to do so.

    The interpolations of a configuration are parsed once and not for every point, and so is the version of which Hydra
    asks for every file whether it is reached. The choices from which the interpolations in a list of defaults are
    resolved are collected only where there are some; for every file with a list that took a seventh of the time of a
    composition.
    """
    vars(defaults_list)["_create_interpolation_map"] = _interpolation_map
    vars(omegaconf_base)["parse"] = _parse
    vars(version)["_get_version"] = _version


def _interpolation_map(overrides: Any, defaults: list[InputDefault], self_added: bool) -> DictConfig:
    if any(default.is_interpolation() for default in defaults):
        return _full_interpolation_map(overrides, defaults, self_added)
    return _NO_CHOICES
