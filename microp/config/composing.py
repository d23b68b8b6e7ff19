"""Composes configurations through Hydra's public functions: one, or all points of a sweep before the first one runs.

::

    schedule=gpipe,interleaved schedule.stages_per_rank=4
        │ itertools.product of the axes
        ▼
    schedule=gpipe        ── hydra.compose ──► configuration ┐  values are set in a copy of it: a configuration is
    schedule=interleaved  ── hydra.compose ──► configuration ┘  composed once per combination of options
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import NamedTuple

from hydra import compose, initialize_config_dir
from hydra.conf import OverridesConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from microp.config.errors import REFUSED, ConfigError, refusal
from microp.config.schema import GROUPS, is_fixed
from microp.settings import quoted
from microp.system import CONF, SWEEPS, override

MOST_POINTS = 100_000  # each is composed and checked before the first one runs


class StoredSweeps(SearchPathPlugin):
    """Lets Hydra find the stored sweeps, after `conf/` and `-cd FOLDER`: `-cn first` reads `sweeps/first.yaml`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        typed = _typed()
        if typed.config_name is None:
            return  # their groups would appear in the tab completion of other commands
        if typed.config_dir:
            search_path.append("command-line", f"file://{Path(typed.config_dir).absolute()}")
        search_path.append("stored sweeps", f"file://{SWEEPS}")


def _typed() -> argparse.Namespace:
    """Return what the command line says of where a configuration is; other words are ignored."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name")
    parser.add_argument("-c", "--cfg")  # else it would be read as an abbreviation of -cd
    return parser.parse_known_args()[0]


def typed_folder() -> list[str]:
    """Return the words `-cd FOLDER` if a folder of options was typed; commands that are printed begin with them."""
    folder = _typed().config_dir
    return ["-cd", folder] if folder else []


@contextmanager
def composer(folder: Path | None = None) -> Iterator[list[str]]:
    """Set up Hydra for `compose`, and yield the overrides by which it finds a user's own folder of options."""
    with initialize_config_dir(str(CONF), job_name="microp", version_base="1.3"):
        yield [] if folder is None else [f"hydra.searchpath=[{override('', f'file://{folder.absolute()}')[1:]}]"]


def key_of(word: str) -> str:
    """Return the key of an override: `chunks` of `++chunks=3`."""
    return word.lstrip("+~").partition("=")[0]


def word_problems(words: Sequence[str]) -> list[str]:
    """Return which overrides Hydra takes although the record would not say what ran, one sentence each."""
    problems = []
    for word in words:
        key = key_of(word)
        group, _, knob = key.partition(".")
        if word.startswith(("+", "~")):
            problems.append(f"{quoted(word)}: no key is added or taken away, write {key}=VALUE with a key of --help")
        elif group in GROUPS and is_fixed(group, knob):
            problems.append(f"{quoted(word)} cannot be set, it says which option was chosen: use {group}=OPTION")
    return problems


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
    axes = {axis.get_key_element(): _words(axis) for axis in overrides}
    if (number := prod(map(len, axes.values()))) > MOST_POINTS or not number:
        raise ConfigError([f"the sweep has {number} points or more: use 1 to {MOST_POINTS}"])
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
            node = copy.deepcopy(composed[options])
            for word in words:
                if word in values:
                    OmegaConf.update(node, values[word].key_or_group, values[word].value())
            points.append(Composed(list(words), node, []))
        except REFUSED as error:
            points.append(Composed(list(words), None, refusal(error)))
    return points


def _words(axis: Override) -> list[str]:
    """Return the overrides of one axis, as Hydra's sweeper writes them: one per value."""
    if axis.is_sweep_override() and not axis.is_discrete_sweep():
        raise ConfigError([f"{quoted(axis.input_line)} is for a sweeper that chooses values itself: list the values"])
    values = axis.sweep_string_iterator() if axis.is_sweep_override() else [axis.get_value_element_as_str()]
    return [f"{axis.get_key_element()}={value}" for value in islice(values, MOST_POINTS + 1)]
