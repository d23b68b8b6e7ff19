"""Calls the builder that an option names; the builder's signature is the schema of the option's keys.

::

    # conf/schedule/gpipe.yaml                     def gpipe(ranks, chunks, drain: Drain)
    builder: microp.schedule.builders.gpipe ──►             ──────────────  ────────────
    drain: lifo                                             given numbers   typed key

A new schedule or partition is therefore one function and one YAML file. `hydra.utils.instantiate` would also
call the function, but it does not check the types of the keys: a string could reach a builder that needs a number.

A user's own model is built to be checked, too::

    # model/mine.yaml          def layers(width: int) -> Layers
    builder: mine.layers ──► few weights: with numbers ──────── inspect_layers ──► OwnSettings
    width: 64                many: on the meta device ───────────────┤
                                         └ fails: with numbers ──────┘

Numbers show more than shapes do, but a large model takes long to make. What plain PyTorch runs on the CPU may fail
without numbers, such as experts that choose their rows.
"""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field, make_dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from hydra.utils import get_method
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from microp import settings
from microp.config.errors import first_line, log_traceback
from microp.records import in_words
from microp.schedule.builders import builder_of
from microp.system import PACKAGE

logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # it logs what `build` raises, in several lines
T = TypeVar("T")
MOST_PAIRS = 1_000_000  # (stage, microbatch) pairs of a schedule
MOST_WEIGHTS = 100_000_000  # of a model that is made with numbers to be checked; a larger one only if it has to be
GIVEN = frozenset({"ranks", "chunks", "layers", "stages", "task"})  # arguments of builders that are no keys
HOW = ": write FILE.FUNCTION, with FILE.py in the current folder or in one that PYTHONPATH names"
_checked_models: dict[str, settings.OwnSettings] = {}  # every point of a sweep asks for the same few


def build(group: str, node: dict[str, Any], made: type[T], **given: Any) -> T:
    """Call the builder of an option with the given arguments and the option's own keys.

    Args:
        group: the option's group, for messages.
        node: the option: `name`, `builder` (a dotted path) and the builder's keys.
        made: what the builder returns.
        given: the arguments of the builder that are no keys, for example the number of ranks.

    Raises:
        ValueError: the builder cannot be imported, a key is unknown or of the wrong type, or
            the builder refuses the numbers, fails, or returns something else than `made`.
    """
    for key in ("name", "builder"):
        if not isinstance(node.get(key), str):
            raise ValueError(f"{group}.{key} has no value: give each option of {group} a name and a builder")
    if broken := settings.Name().broken(node["name"]):
        raise ValueError(f"{group}.name={settings.quoted(node['name'])} {broken}")
    builder = read_builder(group, node)[0]
    knobs = typed_keys(group, node)
    if group == "schedule":
        _refuse_too_large({**given, **knobs})
    what = f"{group}.builder={node['builder']}"
    try:
        result = builder(**given, **knobs)
    except (Exception, SystemExit) as error:  # a builder may be the user's own, and exit
        log_traceback(error)
        if isinstance(error, ValueError) and node["builder"].startswith("microp."):
            named = any(str(error).startswith(f"{key}=") for key in knobs)
            raise ValueError(f"{group}.{error}" if named else str(error)) from error
        numbers = ", ".join(f"{key}={value}" for key, value in given.items() if isinstance(value, int)) or "its keys"
        raise ValueError(f"{what} failed for {numbers}: {in_words(error)}{_line_of(error)}") from error
    if not isinstance(result, made):
        got = "None" if result is None else f"a value of type {type(result).__name__}"
        raise ValueError(f"{what} returned {got}, not a {made.__name__}: return one")
    return result


def _refuse_too_large(numbers: dict[str, Any]) -> None:
    """Raise ValueError if a schedule of these numbers would not fit into memory; the builder is not called then."""
    factors = {key: numbers[key] for key in ("ranks", "chunks", "stages_per_rank") if isinstance(numbers.get(key), int)}
    pairs = prod(max(1, number) for number in factors.values())
    if pairs > MOST_PAIRS:
        product = " times ".join(f"{key}={number}" for key, number in factors.items())
        what = f"{pairs} pairs of a stage and a microbatch, which are too many for memory"
        raise ValueError(f"{product} is {what}: use a product of at most {MOST_PAIRS}")


def read_builder(group: str, node: dict[str, Any]) -> tuple[Callable[..., Any], set[str], dict[str, Any]]:
    """Return an option's function, the names of its parameters and their types, or raise ValueError with why not."""
    lacks = "cannot be imported"
    try:
        builder = get_method(node["builder"])
        lacks = "has a signature that cannot be read"
        parameters, hints = inspect.signature(builder).parameters, get_type_hints(builder)
    except (Exception, SystemExit) as error:  # Hydra wraps whatever the import raised
        log_traceback(error)
        cause, (module, _, function) = error.__cause__ or error, node["builder"].rpartition(".")
        said = in_words(cause)
        said = f"{module} has no function {function}" if said.endswith("is not a package") else said
        said += _line_of(cause) or HOW * (lacks == "cannot be imported" and not isinstance(cause, SyntaxError))
        raise ValueError(f"{group}.builder={node['builder']} {lacks}: {said}") from error
    names = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    if group == "schedule" and "of" in names and len(names) < len(parameters):  # `**keys` are those of another order
        inner = builder_of(str(node.get("of")))
        names, hints = names.union(inspect.signature(inner).parameters), get_type_hints(inner) | hints
    return builder, names, hints


def _line_of(error: BaseException) -> str:
    """Return the line of a user's file at which an error was raised, in brackets; empty if none was run."""
    others = (*sysconfig.get_paths().values(), str(PACKAGE), "<")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def is_computed(partition: dict[str, Any]) -> bool:
    """Return whether a partition's builder asks what the partition is for; not if it cannot be imported."""
    try:
        return "task" in read_builder("partition", partition)[1]
    except (KeyError, ValueError):  # `build` says what is wrong with the builder
        return False


def keys_of_builder(group: str, node: dict[str, Any]) -> set[str]:
    """Return the keys that an option with a builder has, or raise ValueError if it cannot be imported."""
    return {"name", "builder"} | (read_builder(group, node)[1] - GIVEN)


def typed_keys(group: str, node: dict[str, Any]) -> dict[str, Any]:
    """Return an option's keys without `name` and `builder`, with the types of the builder's signature."""
    _, _, hints = read_builder(group, node)
    knobs = {key: value for key, value in node.items() if key not in ("name", "builder")}
    kind = make_dataclass(group, [(key, hints.get(key, Any), field(default=MISSING)) for key in knobs])
    return dict(vars(typed(group, kind, knobs)))


def typed(group: str, kind: type, keys: dict[str, Any]) -> Any:
    """Return an option's keys as an object of a dataclass, or raise ValueError: a value has the wrong type."""
    try:
        return copy.deepcopy(_typed(kind, pickle.dumps(keys)))
    except MissingMandatoryValue as error:  # a file has set the option's name alone
        raise ValueError(
            f"{group}.{error.full_key} is missing: {group}=NAME chooses an option with all its keys, and in a file "
            f"`override {group}: NAME` in its defaults list"
        ) from None
    except OmegaConfBaseException as error:
        raise ValueError(f"{group}.{error.full_key or 'builder'}: {first_line(error)}") from error


@lru_cache(maxsize=1000)  # the points of a sweep differ in few options, and OmegaConf takes 3 ms for each
def _typed(kind: type, keys: bytes) -> Any:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), pickle.loads(keys)))


# --- a user's own model -----------------------------------------------------------------------------


def own_model(
    node: dict[str, Any], computing: settings.Computing, device: settings.DeviceSettings
) -> settings.OwnSettings:
    """Return the settings of the model whose function an option names.

    ValueError: it would not train as in plain PyTorch.
    """
    text = repr((node, computing, device.name))
    if text not in _checked_models:
        _checked_models[text] = _checked(node, computing, device)
    return copy.deepcopy(_checked_models[text])


def _checked(
    node: dict[str, Any], computing: settings.Computing, device: settings.DeviceSettings
) -> settings.OwnSettings:
    import torch  # takes half a second, and only this needs it

    from microp.model import (
        Layers,
        check_apart,
        code_of,
        inspect_layers,
        lowered_types,
        number_of_weights,
        seeded,
        unchanged,
    )

    what = f"model.builder={node['builder']}"

    def layers(place: str) -> Layers:
        with torch.device(place), unchanged(what):
            return build("model", node, Layers)

    if node["name"] in settings.MODELS:
        raise ValueError(f"model.name={node['name']} is the name of one of microp's models: choose another name")
    code, place, first = code_of(read_builder("model", node)[0]), "cpu", None
    with suppress(ValueError):  # what fails without numbers may be right with them
        made = layers("meta")
        place = "meta" if number_of_weights(made) > MOST_WEIGHTS else place
        first = made
    usual = torch.enable_grad(), torch.autocast("cpu", enabled=False)  # as on a rank, whatever the caller has set
    with seeded(0), torch.device("cpu"), torch.inference_mode(False), usual[0], usual[1]:
        made = layers(place)
        try:
            facts = inspect_layers(made, code)
            check_apart(made, first or layers(place))
            if computing.dtype in settings.LOWERED and facts.dtype == "float32":
                runs_on = "cuda" if device.name == "cuda" and torch.cuda.is_available() else "cpu"
                facts = replace(facts, lowered=lowered_types(layers(place), computing, runs_on))
        except ValueError as error:
            raise ValueError(f"{what} returns {error}") from error
    return settings.own_settings(node["name"], node["builder"], typed_keys("model", node), facts)
