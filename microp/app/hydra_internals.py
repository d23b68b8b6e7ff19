"""Adapts Hydra's private modules: reads typed options, expands sweeps into points, composes stored sweeps.

Hydra has no public functions for these. If a new version moves its modules, only this file changes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from microp.app.errors import ConfigError, Rest
from microp.app.hydra_loader import Loader
from microp.app.hydra_pace import copied
from microp.app.hydra_problems import key_of
from microp.settings import quoted

MOST_POINTS = 100_000  # each is composed and checked before the first one runs


def typed_options() -> argparse.Namespace:
    """Return the typed options of Hydra, such as `config_name` and `config_dir`; other arguments are ignored."""
    options: argparse.Namespace
    options, _ = get_args_parser().parse_known_args()
    return options


def typed_folder() -> list[str]:
    """Return the words `-cd FOLDER` if a folder of options was typed; commands that are printed begin with them.

    The program may be another one, such as a notebook, whose words Hydra's parser would refuse.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-cd", "--config-dir")
    folder = parser.parse_known_args()[0].config_dir
    return ["-cd", folder] if folder else []


def check_options() -> None:
    """Refuse what Hydra's parser of the command line would refuse with several lines of usage.

    Raises:
        ConfigError: an option does not exist or has no value; what is wrong, in one line.
    """

    def refuse(message: str) -> NoReturn:
        raise ConfigError([f"{message}; see --help"])

    parser = get_args_parser()
    vars(parser)["error"] = refuse
    _, others = parser.parse_known_args()
    words = sys.argv[1:]
    for option in (word for word in others if word.startswith("-")):
        after = words[words.index(option) + 1 :]
        key, _, value = option.lstrip("-").partition("=")
        value = value or next((word for word in after[:1] if "=" not in word and not word.startswith("-")), "...")
        raise ConfigError([f"{option} is not an option: if it is a key, write {key}={value}, without dashes"])
    if others:
        raise ConfigError([f"{others[0]} stands after an option: write options such as -m before all overrides"])


def typed_overrides(config: DictConfig) -> list[str]:
    """Return the overrides of a command as they were typed; an interpolation in them is not resolved."""
    typed = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    assert isinstance(typed, list)
    return typed


def is_basic(sweeper: DictConfig) -> bool:
    """Return whether a sweeper is Hydra's own, whose points are known before the first one runs."""
    return bool(sweeper._target_.endswith("BasicSweeper"))


def launches_in_turn(launcher: DictConfig) -> bool:
    """Return whether a launcher runs the points of a sweep one after the other, as Hydra's own and those made of it.

    Hydra loads the module of its launcher anew when it looks for plugins, so that the class is compared by its name.
    """
    return any(each.__qualname__ == BasicLauncher.__qualname__ for each in get_class(launcher._target_).mro())


class Composed(NamedTuple):
    """One point of a sweep as it was composed.

    Attributes:
        overrides: the overrides that were typed for it.
        config: the configuration; None if it cannot be composed.
        problems: why not, one sentence per problem.
        rests: what can be composed of it.
    """

    overrides: list[str]
    config: DictConfig | None
    problems: list[str]
    rests: list[Rest]


def expand(config: DictConfig) -> list[tuple[list[str], DictConfig]]:
    """Return the points of a sweep as (overrides, configuration); none if the sweeper is not Hydra's basic one.

    Raises:
        HydraException: the axes of the sweep cannot be read.
        ConfigError: a point cannot be composed (an unknown option, a wrong type); it has the problems of all points.
    """
    return together(compose_points(config))


def together(composed: Sequence[Composed]) -> list[tuple[list[str], DictConfig]]:
    """Return the composed points as (overrides, configuration); raises ConfigError as `expand`."""
    found = [(each.overrides, each.config) for each in composed if each.config is not None]
    if problems := [problem for each in composed for problem in each.problems]:
        rests = [rest for each in composed for rest in each.rests]
        rests += [Rest(overrides, node, []) for overrides, node in found]
        raise ConfigError(list(dict.fromkeys(problems)), rests)
    return found


def compose_points(config: DictConfig) -> list[Composed]:
    """Return the points of a sweep, also those that cannot be composed; none if the sweeper is not Hydra's basic one.

    Composing takes 70 ms. It is done once per choice of options; values are then set in a copy.

    Raises:
        HydraException: the axes of the sweep cannot be read.
    """
    sweeper = config.hydra.sweeper
    if not is_basic(sweeper):
        return []
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, Loader)
    stored = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    overrides = parser.parse_overrides([*stored, *typed_overrides(config)])
    if axes := _axis_problems(overrides):
        raise ConfigError(axes)
    [points] = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    composed: dict[tuple[str, ...], tuple[DictConfig, dict[str, Any]]] = {}
    found = []
    alone: dict[tuple[str, ...], bool] = {}
    for point in points:
        options, values = loader.split(point)
        try:
            if tuple(options) not in composed:
                composed[tuple(options)] = _options_of(config, loader, options)
            node, choices = copied(composed[tuple(options)])
            loader.apply(node, choices, values)
            found.append(Composed(list(point), node, [], []))
        except ConfigError as error:
            rests = list(error.rests)
            if tuple(options) in composed:
                rests += _rest_of(loader, composed[tuple(options)], options, values, alone)
            found.append(Composed(list(point), None, error.problems, rests))
    return found


def _axis_problems(overrides: Sequence[Override]) -> list[str]:
    """Return why these axes give no points, or more than a sweep can have; they are counted and not listed."""
    found, points = [], 1
    for each in (each for each in overrides if each.is_sweep_override()):
        word = quoted(each.input_line)
        if each.is_interval_sweep():
            found.append(f"{word} is for a sweeper that chooses values itself, such as Optuna's: list the values")
        elif not (size := _axis_size(each)):
            found.append(f"{word} gives no value, so the sweep has no point: give at least one value")
        else:
            points *= size
    if points > MOST_POINTS:
        found.append(f"the sweep has {points} points: use at most {MOST_POINTS}, for example in several sweeps")
    return found


def _axis_size(axis: Override) -> int:
    values = axis.value()
    if isinstance(values, RangeSweep):
        assert values.start is not None
        assert values.stop is not None
        return max(0, math.ceil((values.stop - values.start) / values.step)) if values.step else 0
    return sum(1 for _ in axis.sweep_iterator())


def _rest_of(
    loader: Loader,
    composed: tuple[DictConfig, dict[str, Any]],
    options: list[str],
    values: list[str],
    alone: dict[tuple[str, ...], bool],
) -> list[Rest]:
    """Return a point without the values that are wrong; `alone` remembers which ones are, for the other points."""

    def applied(words: list[str]) -> DictConfig | None:
        node, choices = copied(composed)
        try:
            loader.apply(node, choices, words)
        except ConfigError:
            return None
        return node

    for word in values:
        if (*options, word) not in alone:
            alone[*options, word] = applied([word]) is not None
    good = [word for word in values if alone[*options, word]]
    node = applied(good)
    refused = [key_of(word) for word in values if word not in good]
    return [] if node is None else [Rest([*options, *good], node, refused)]


def _options_of(config: DictConfig, loader: Loader, options: list[str]) -> tuple[DictConfig, dict[str, Any]]:
    """Return a point of a sweep with these options and no values set, without Hydra's own part, and its choices."""
    node = loader.compose_point(config, options)
    choices = dict(node.hydra.runtime.choices)
    with read_write(node), open_dict(node):
        node.pop("hydra")  # the larger part, and the same for all points
    return node, choices


class Composer:
    """Composes configurations of a search path in the way a command does."""

    def __init__(self, loader: ConfigLoaderImpl) -> None:
        self._loader = loader

    def sweep(self, name: str, overrides: Sequence[str] = ()) -> DictConfig:
        """Return the configuration of a stored sweep; `expand` gives its points.

        Raises:
            HydraException: it cannot be composed.
        """
        return self._loader.load_configuration(name, list(overrides), RunMode.MULTIRUN)


@contextmanager
def composer(*folders: Path) -> Iterator[Composer]:
    """Set up Hydra with these folders as search path, in this order, and restore its state afterwards."""
    version.setbase("1.3")
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    first, *others = folders
    path = create_config_search_path(str(first.resolve()))
    for folder in others:
        path.prepend("command-line", f"file://{folder.resolve()}", SearchPathQuery(provider="schema"))
    hydra = Hydra.create_main_hydra2("microp", path)
    try:
        assert isinstance(hydra.config_loader, ConfigLoaderImpl)
        yield Composer(hydra.config_loader)
    finally:
        GlobalHydra.instance().hydra = before
