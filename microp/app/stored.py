"""Stored sweeps by name: `microp -cn m_sensitivity` finds `sweeps/m_sensitivity.yaml` without `-cd sweeps`.

::

    where Hydra looks, in this order:  conf/   -cd FOLDER   sweeps/
"""

from __future__ import annotations

import difflib
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from microp.app.places import SWEEPS


class StoredSweeps(SearchPathPlugin):
    """Adds the folder of the stored sweeps where a configuration is named with `-cn`.

    Not for other commands: the groups of the sweeps would turn up in their tab completion.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        typed = get_args_parser().parse_args()  # Hydra has parsed them before: they are well formed
        if typed.config_name is None:
            return
        if typed.config_dir is not None:  # Hydra adds this folder too, but later, and the first one wins
            search_path.append("command-line", f"file://{Path(typed.config_dir).absolute()}")
        search_path.append("stored sweeps", f"file://{SWEEPS}")


def register() -> None:
    """Tell Hydra; to be called before `hydra.main`."""
    Plugins.instance().register(StoredSweeps)
    OmegaConf.register_new_resolver("sweep_list", listed, replace=True)  # for --help


def names() -> list[str]:
    """Return the names of the stored sweeps."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def listed() -> str:
    """Return the names in one line, without the quick parts."""
    return ", ".join(name for name in names() if not name.endswith("_quick"))


def nearest(error: BaseException | None) -> str | None:
    """Return a line with the names that come nearest, if `error` is that of a `-cn` name that Hydra did not find."""
    if not isinstance(error, MissingConfigException) or "primary config" not in str(error):
        return None
    stored, asked = names(), str(error.missing_cfg_file).removesuffix(".yaml")
    if asked in stored:  # `microp.simulate` does not look there
        return f"{asked!r} is a stored sweep of runs: microp -cn {asked}"
    if near := difflib.get_close_matches(asked, stored):
        return f"stored sweeps with a name like that: {', '.join(near)}"
    return f"the stored sweeps: {listed()}"
