"""Adapts Hydra's private modules: reads typed options, expands sweeps into points, composes stored sweeps.

Hydra has no public functions for these. If a new version moves its modules, only this file changes.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException


def typed_options() -> argparse.Namespace:
    """Return the typed options of Hydra, such as `config_name` and `config_dir`; other arguments are ignored."""
    options: argparse.Namespace
    options, _ = get_args_parser().parse_known_args()
    return options


def typed_overrides(config: DictConfig) -> list[str]:
    """Return the overrides of a command as they were typed; an interpolation in them is not resolved."""
    typed = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    assert isinstance(typed, list)
    return typed


def expand(config: DictConfig) -> list[tuple[list[str], DictConfig]]:
    """Return the points of a sweep as (overrides, configuration); none if the sweeper is not Hydra's basic one.

    Composing takes 70 ms. It is done once per choice of options; values are then set in a copy.

    Raises:
        HydraException: a point cannot be composed (an unknown option, a wrong type).
    """
    sweeper = config.hydra.sweeper
    if not sweeper._target_.endswith("BasicSweeper"):
        return []
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    stored = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    overrides = parser.parse_overrides([*stored, *typed_overrides(config)])
    [points] = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    composed: dict[tuple[str, ...], DictConfig] = {}
    found = []
    for point in points:
        parsed = parser.parse_overrides(point)
        values = [each for each in parsed if not loader.repository.group_exists(each.key_or_group)]
        options = tuple(str(each.input_line) for each in parsed if each not in values)
        if options not in composed:
            composed[options] = loader.load_sweep_config(config, list(options))
            with read_write(composed[options]), open_dict(composed[options]):
                composed[options].pop("hydra")  # the larger part, and the same for all points
        node = copy.deepcopy(composed[options])
        ConfigLoaderImpl._apply_overrides_to_config(values, node)
        found.append((list(point), node))
    return found


def root_of(error: OmegaConfBaseException) -> DictConfig | None:
    """Return the whole configuration in which an error occurred, or None if the error does not know it."""
    node = error.parent_node
    root = None if node is None else node._get_root()
    return root if isinstance(root, DictConfig) else None


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
