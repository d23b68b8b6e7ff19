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
import logging
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from math import prod
from typing import Any, TypeVar, get_type_hints

from hydra.utils import get_method
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from microp.config.errors import first_line, last_cause, log_traceback
from microp.settings import Line, Name, quoted

logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # it logs what `build` raises, in several lines
T = TypeVar("T")
LONGEST = 200  # characters of what an exception says
MOST_PAIRS = 1_000_000  # (stage, microbatch) pairs of a schedule
_TEXT = Line("give a text on one line")
GIVEN = frozenset({"ranks", "chunks", "layers", "stages", "task"})  # arguments of builders that are no keys


def build(
    group: str,
    node: dict[str, Any],
    made: type[T],
    offered: Mapping[str, Callable[[], Any]] | None = None,
    **given: int,
) -> T:
    """Call the builder of an option with the given arguments and the option's own keys.

    Args:
        group: the option's group, for messages.
        node: the option: `name`, `builder` (a dotted path) and the builder's keys.
        made: what the builder returns.
        offered: functions that make further arguments, for a builder whose signature names them.
        given: the arguments of every builder of the group, for example the number of ranks.

    Raises:
        ValueError: the builder cannot be imported, a key is unknown or of the wrong type, or
            the builder refuses the numbers, fails, or returns something else than `made`.
    """
    for key in ("name", "builder"):
        if not isinstance(node.get(key), str):
            raise ValueError(f"{group}.{key} has no value: give each option of {group} a name and a builder")
    if broken := Name().broken(node["name"]):
        raise ValueError(f"{group}.name={quoted(node['name'])} {broken}")
    builder, parameters, _ = read_builder(group, node)
    knobs = typed_keys(group, node)
    if group == "schedule":
        _refuse_too_large({**given, **knobs})
    wanted = {key: make() for key, make in (offered or {}).items() if key in parameters}
    what = f"{group}.builder={node['builder']}"
    numbers = ", ".join(f"{key}={value}" for key, value in given.items()) or "its keys"
    try:
        result = builder(**given, **knobs, **wanted)
    except (Exception, SystemExit) as error:  # a builder may be the user's own, and exit
        log_traceback(error)
        is_refusal = isinstance(error, ValueError)
        if is_refusal and str(node["builder"]).startswith("microp."):  # what a user's own says need not name the key
            named = any(str(error).startswith(f"{key}=") for key in knobs)
            raise ValueError(f"{group}.{error}" if named else str(error)) from error
        first = last_cause(error)
        cause = "" if first is error else f", from {_said(first)}"
        did = "refuses" if is_refusal else "failed for"
        raise ValueError(f"{what} {did} {numbers}: {_said(error)}{cause}") from error
    if not isinstance(result, made):
        got = "None" if result is None else f"a value of type {type(result).__name__}"
        raise ValueError(f"{what} returned {got}, not a {made.__name__}: return one")
    return result


def _refuse_too_large(numbers: dict[str, Any]) -> None:
    """Raise ValueError if a schedule of these numbers would not fit into memory; the builder is not called then."""
    factors = {key: numbers[key] for key in ("ranks", "chunks", "stages_per_rank") if isinstance(numbers.get(key), int)}
    pairs = prod(max(1, each) for each in factors.values())
    if pairs > MOST_PAIRS:
        product = " times ".join(f"{key}={each}" for key, each in factors.items())
        raise ValueError(
            f"{product} is {pairs} pairs of a stage and a microbatch, which are too many for memory: "
            f"use a product of at most {MOST_PAIRS}"
        )


def read_builder(group: str, node: dict[str, Any]) -> tuple[Callable[..., Any], set[str], dict[str, Any]]:
    """Return an option's function, the names of its parameters and their types, or raise ValueError with why not."""
    lacks = "cannot be imported"
    try:
        builder = get_method(node["builder"])
        lacks = "has a signature that cannot be read"
        return builder, set(inspect.signature(builder).parameters), get_type_hints(builder)
    except (Exception, SystemExit) as error:  # Hydra wraps whatever the import raised
        log_traceback(error)
        raise ValueError(f"{group}.builder={node['builder']} {lacks}: {_said(last_cause(error))}") from error


def asks_for(group: str, node: dict[str, Any], name: str) -> bool:
    """Return whether the signature of an option's builder names this argument; not if it cannot be imported."""
    try:
        return name in read_builder(group, node)[1]
    except ValueError:
        return False


def keys_of_builder(group: str, node: dict[str, Any]) -> set[str]:
    """Return the keys that an option with a builder has, or raise ValueError if it cannot be imported."""
    return {"name", "builder"} | (read_builder(group, node)[1] - GIVEN)


def typed_keys(group: str, node: dict[str, Any]) -> dict[str, Any]:
    """Return an option's keys without `name` and `builder`, with the types of the builder's signature."""
    _, _, hints = read_builder(group, node)
    knobs = {key: value for key, value in node.items() if key not in ("name", "builder")}
    schema = make_dataclass(group, [(key, hints.get(key, Any), field(default=MISSING)) for key in knobs])
    key = "builder"
    try:
        typed = OmegaConf.structured(schema)
        for key, value in knobs.items():
            typed[key] = value
    except OmegaConfBaseException as error:
        raise ValueError(f"{group}.{error.full_key or key}: {first_line(error)}") from error
    for key in knobs:
        if isinstance(typed[key], str) and (broken := _TEXT.broken(typed[key])):
            raise ValueError(f"{group}.{key}={quoted(typed[key])} {broken}")
    return {key: OmegaConf.to_object(typed[key]) if OmegaConf.is_config(typed[key]) else typed[key] for key in knobs}


def _said(error: BaseException) -> str:
    """Return the type and the message of an exception in one line, cut if it is long."""
    said = "" if isinstance(error, SystemExit) and not error.code else str(error)  # some programs turn None into 0
    text = " ".join(f"{type(error).__name__}: {said}".split()).removesuffix(":")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
