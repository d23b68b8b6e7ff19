"""Finds stored sweeps by name: `microp -cn m_sensitivity` reads `sweeps/m_sensitivity.yaml` without `-cd sweeps`.

::

    folders that Hydra searches, in this order:  conf/   -cd FOLDER   sweeps/
"""

from __future__ import annotations

import difflib
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from microp.app.errors import ConfigError
from microp.app.help_page import key_page, sweep_page
from microp.app.hydra_internals import typed_options
from microp.app.places import SWEEPS, sweep_names
from microp.app.sweep_parts import PARTS, register_parts
from microp.settings import quoted


class StoredSweeps(SearchPathPlugin):
    """Adds the folder of the stored sweeps to the search path if `-cn` names a configuration.

    Other commands do without it, because the sweeps' groups would appear in their tab completion.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        typed = typed_options()
        if typed.config_name is None:
            return
        if typed.config_dir is not None:  # Hydra adds it after `sweeps`, and the first match wins
            search_path.append("command-line", f"file://{Path(typed.config_dir).absolute()}")
        search_path.append("stored sweeps", f"file://{SWEEPS}")


def register() -> None:
    """Register the stored sweeps and their parts with Hydra; must be called before `hydra.main`.

    Raises:
        ConfigError: the name is none, or a file of parts is invalid.
    """
    typed = typed_options()
    asked = str(typed.config_name or "").removesuffix(".yaml")
    if asked.endswith(PARTS.removesuffix(".yaml")):
        sweep = asked.removesuffix(PARTS.removesuffix(".yaml"))
        raise ConfigError([f"-cn {typed.config_name} is no sweep, but the parts of one: use -cn {sweep}"])
    if "/" in asked:  # the name is a part of the sweep's folder, which lies in the output folder
        folder, _, name = asked.rpartition("/")
        raise ConfigError([f"-cn {quoted(asked)} is a path and no name: use -cd {quoted(folder)} -cn {quoted(name)}"])
    if asked:
        register_parts(SWEEPS, *([Path(typed.config_dir)] if typed.config_dir else []))
    Plugins.instance().register(StoredSweeps)
    OmegaConf.register_new_resolver("key_page", key_page, replace=True)  # for --help
    OmegaConf.register_new_resolver("sweep_page", sweep_page, replace=True)


def listed() -> str:
    """Return the names of the stored sweeps in one line, without the quick ones."""
    return ", ".join(name for name in sweep_names() if not name.endswith("_quick"))


def nearest(error: BaseException | None) -> str | None:
    """Return a line with similar names if `error` is about a `-cn` name that Hydra did not find, else None."""
    if not isinstance(error, MissingConfigException) or "primary config" not in str(error):
        return None
    stored, asked = sweep_names(), str(error.missing_cfg_file).removesuffix(".yaml")
    if asked in stored:  # `microp.simulate` does not look there
        return f"{asked!r} is a stored sweep of runs: microp -cn {asked}"
    if near := difflib.get_close_matches(asked, stored):
        return f"stored sweeps with a similar name: {', '.join(near)}"
    return f"the stored sweeps: {listed()}"
