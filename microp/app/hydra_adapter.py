"""The place that reaches into Hydra's private modules: what its command line says, and Hydra for a library call.

Hydra has no public way to ask for either. If a new version of Hydra moves them, only this file changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig


def config_dir(arguments: Sequence[str]) -> Path | None:
    """The folder that a command's `--config-dir` or `-cd` names; None where it names none."""
    known, _ = get_args_parser().parse_known_args(arguments)
    return Path(known.config_dir) if known.config_dir else None


class Composer:
    """Composes the configurations of a search path, as a command does."""

    def __init__(self, loader: ConfigLoaderImpl) -> None:
        self._loader = loader

    def sweep(self, name: str, overrides: Sequence[str] = ()) -> DictConfig:
        """The configuration of a stored sweep; its points follow by `points.expand`.

        Raises:
            HydraException: it cannot be composed.
        """
        return self._loader.load_configuration(name, list(overrides), RunMode.MULTIRUN)


@contextmanager
def composer(*folders: Path) -> Iterator[Composer]:
    """Set Hydra up over some folders, the first one before the others; afterwards it is as it was."""
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
