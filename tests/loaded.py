"""Hydra's composing, which takes three quarters of a command's time, done once per choice of files.

::

    -m schedule=gpipe chunks=2 ── schedule=gpipe ── Hydra, the first time ──► configuration ┐
                               └─ chunks=2 ─────────────────────────────────────────────────┴─► a copy with the value

A command in an interpreter of its own has Hydra's alone; `config/test_config.py` compares the two.
"""

import copy
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import JobRuntime
from omegaconf import DictConfig

from microp.config.schema import GROUPS
from microp.system import sweep_names

ROOT = Path(__file__).parents[1]
FILES = {*GROUPS, *sweep_names()}  # keys that choose a file; the parts of a stored sweep have its name
load, _loaded = ConfigLoaderImpl.load_configuration, {}


def load_once(loader: ConfigLoaderImpl, overrides: list[str], **how: Any) -> DictConfig:
    """Stand for `ConfigLoaderImpl.load_configuration`."""
    words = OverridesParser.create().parse_overrides(overrides)
    options = [word.input_line for word in words if not sets_value(word)]
    folders = [Path(source.path) for source in loader.repository.get_sources() if source.scheme() == "file"]
    own = [file for folder in folders if ROOT not in folder.parents for file in folder.rglob("*.yaml")]
    states = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in own]
    key = repr((options, how, JobRuntime.instance().get("name"), folders, states))
    if key not in _loaded or "hydra.searchpath" in key:
        _loaded[key] = load(loader, overrides=options, **how)
    made = copy.deepcopy(_loaded[key])
    loader._apply_overrides_to_config([word for word in words if sets_value(word)], made)
    made.hydra.overrides.task = [word.input_line for word in words if not word.is_hydra_override()]
    made.hydra.overrides.hydra = [word.input_line for word in words if word.is_hydra_override()]
    made.hydra.runtime.cwd = str(Path.cwd())
    return made


def sets_value(word: Override) -> bool:
    """Return whether an override chooses no file, and is none that Hydra refuses before it composes."""
    key, changes = word.key_or_group, word.type is OverrideType.CHANGE and not word.is_sweep_override()
    is_of_hydra = key.startswith("hydra") and key != "hydra.sweep.dir"
    return changes and word.package is None and key not in FILES and "/" not in key and not is_of_hydra
