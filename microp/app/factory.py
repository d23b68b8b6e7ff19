"""Calls the builder that an option names; the builder's signature is the schema of the option's keys.

::

    # conf/schedule/gpipe.yaml                     def gpipe(ranks, chunks, drain: Drain)
    builder: microp.schedule.builders.gpipe ──►             ──────────────  ────────────
    drain: lifo                                             given numbers   typed key

A new schedule or partition is therefore one function and one YAML file. `hydra.utils.instantiate` would also
call the function, but it does not check the types of the keys: a string could reach a builder that needs a number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, make_dataclass
from typing import Any, get_type_hints

from hydra.utils import get_method
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException


def build(group: str, node: dict[str, Any], **given: int) -> Any:
    """Call the builder of an option with the given arguments and the option's own keys.

    Args:
        group: the option's group, for messages.
        node: the option: `name`, `builder` (a dotted path) and the builder's keys.
        given: the arguments of every builder of the group, for example the number of ranks.

    Raises:
        ValueError: the builder cannot be imported, a key is unknown or of the wrong type, or
            the builder refuses the numbers.
    """
    knobs = _knobs(group, node)
    try:
        return _builder(group, node)(**given, **knobs)
    except ValueError as error:
        named = any(str(error).startswith(f"{key}=") for key in knobs)
        raise ValueError(f"{group}.{error}" if named else str(error)) from error


def _builder(group: str, node: dict[str, Any]) -> Callable[..., Any]:
    try:
        return get_method(node["builder"])
    except Exception as error:  # Hydra wraps whatever the import raised
        raise ValueError(f"{group}.builder={node['builder']} cannot be imported: {error}") from error


def _knobs(group: str, node: dict[str, Any]) -> dict[str, Any]:
    """Return an option's keys without `name` and `builder`, with the types of the builder's signature."""
    builder = _builder(group, node)
    hints = get_type_hints(builder)
    knobs = {key: value for key, value in node.items() if key not in ("name", "builder")}
    for key in knobs:
        if key not in inspect.signature(builder).parameters:
            raise ValueError(f"{group}.{key} is not a key of {group}={node['name']}: leave it out")
    schema = make_dataclass(group, [(key, hints[key], field(default=MISSING)) for key in knobs])
    typed = OmegaConf.structured(schema)
    for key, value in knobs.items():
        try:
            typed[key] = value
        except OmegaConfBaseException as error:
            raise ValueError(f"{group}.{key}={value}: {str(error).splitlines()[0]}") from error
    return {key: _plain(typed[key]) for key in knobs}


def _plain(value: Any) -> Any:
    return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
