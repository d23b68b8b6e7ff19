"""Makes Hydra compose quicker, by leaving out and remembering what it makes anew for every configuration.

::

    the files of a configuration ── merged (50 ms) ──► keys and values ── overrides ──► configuration
    the same files, unchanged ──── a copy (2 ms) ─────►
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from hydra import version
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, grammar_parser
from omegaconf import base as omegaconf_base

from microp.app.option_files import File

_NO_CHOICES = DictConfig({})
_full_interpolation_map = defaults_list._create_interpolation_map
_parse = lru_cache(maxsize=1000)(grammar_parser.parse)
_version = lru_cache(maxsize=10)(version._get_version)
T = TypeVar("T")
MOST_MERGED = 100  # configurations of some 100 kB that are kept


def copied(config: T) -> T:
    """Return a deep copy of a configuration; `copy.deepcopy` takes several times as long."""
    result: T = pickle.loads(pickle.dumps(config, pickle.HIGHEST_PROTOCOL))
    return result


@lru_cache(maxsize=1000)
def parsed(word: str) -> list[Override]:
    """Return an override as Hydra reads it, which must not be changed; the points of a sweep have the same few."""
    return OverridesParser.create().parse_overrides([word])


class QuickLoader(ConfigLoaderImpl):
    """Hydra's loader; it merges the same unchanged files once per process, whatever values are set in them then."""

    _merged: ClassVar[dict[tuple[Hashable, ...], bytes]] = {}

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: Any) -> DictConfig:
        files = [repo.load_config(each.config_path) for each in defaults]
        if not all(isinstance(file, File) for file in files):
            return super()._compose_config_from_defaults_list(defaults, repo)
        key = tuple((file.state, each.package, each.primary) for file, each in zip(files, defaults, strict=True))
        if key not in self._merged:
            merged = super()._compose_config_from_defaults_list(defaults, repo)
            if len(self._merged) == MOST_MERGED:
                self._merged.clear()
            self._merged[key] = pickle.dumps(merged, pickle.HIGHEST_PROTOCOL)
            return merged
        copy: DictConfig = pickle.loads(self._merged[key])
        return copy


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
