"""Reads the parts of a stored sweep: sets of keys that belong together, all in one file.

::

    sweeps/partition_skew.yaml         partition_skew: k4,k2      the sweep runs each of its parts
    sweeps/partition_skew.parts.yaml   k4: {ranks: 4, ...}        the keys of each part
                                       k2: {ranks: 2, ...}

Each part becomes an option of the config group `partition_skew`, as if it had its own file `partition_skew/k4.yaml`
with the first line `# @package _global_`. A part is a mapping from keys of a run to values, with a `defaults` list
if it chooses options. Several parts can share keys by YAML's anchors (`&`, `*`, `<<`). An entry whose name starts
with an underscore only holds shared keys and is not a part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from microp.app.errors import ConfigError
from microp.app.option_files import UNREADABLE, check_aliases, file_problem
from microp.app.schema import SCHEMAS, Config

PARTS = ".parts.yaml"

Parts = dict[str, dict[str, Any]]


def register_parts(*folders: Path) -> None:
    """Register the parts in these folders with Hydra; of two files with the same name the last one counts.

    Raises:
        ConfigError: a file of parts is invalid.
    """
    files = {file.name.removesuffix(PARTS): file for folder in folders for file in sorted(folder.glob(f"*{PARTS}"))}
    for group, file in files.items():
        for name, part in read_parts(file).items():
            ConfigStore.instance().store(group=group, name=name, node=part, package="_global_")


def read_parts(file: Path) -> Parts:
    """Return the parts in a file, by name.

    Raises:
        ConfigError: the file is not YAML, or an entry is not a part.
    """
    content = _load(file)
    if not isinstance(content, dict):
        raise ConfigError([f"{file}: it is not a mapping from the names of parts to their keys"])
    problems = [f"{file}: {problem}" for name, part in content.items() for problem in _problems(name, part)]
    if problems:
        raise ConfigError(problems)
    return {name: part or {} for name, part in content.items() if not name.startswith("_")}


def _load(file: Path) -> Any:
    """Return the content of a YAML file, with unresolved interpolations."""
    if not file.is_file():  # reading a pipe would wait forever
        raise ConfigError([f"{file}: it is not a file: give it another name"])
    try:
        check_aliases(file)
        return OmegaConf.to_container(OmegaConf.load(file))
    except UNREADABLE as error:
        raise ConfigError([f"{file}: {file_problem(error)}"]) from error


def _problems(name: object, part: object) -> Iterator[str]:
    """Yield what is wrong with one entry of a file of parts."""
    if not isinstance(name, str):
        yield f"the name of part {name} is not a string: put it in quotes"
    elif not re.fullmatch(r"[\w.-]+", name):
        yield f"{name!r} is not the name of a part: use letters, digits, _ . and -"
    elif not isinstance(part, dict | None):
        yield f"part {name} is not a mapping from keys to values"
    elif part is not None:
        known = [field.name for schema in SCHEMAS.values() if issubclass(schema, Config) for field in fields(schema)]
        for key in part.keys() - {"defaults", *known}:
            near = get_close_matches(str(key), known, 1)
            yield f"part {name}: {key} is not a key of a run" + (f": did you mean {near[0]}?" if near else "")
        if not isinstance(part.get("defaults", []), list):
            yield f"part {name}: defaults is not a list: write for example [override /device: emulated]"
