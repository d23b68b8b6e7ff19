"""Makes the settings of a user's own model: calls its function, and checks what it returns.

::

    # model/mine.yaml          def layers(width: int) -> Layers
    builder: mine.layers ──► few weights: with numbers ──────── inspect_layers ──► OwnSettings
    width: 64                many: on the meta device ───────────────┤
                                         └ fails: with numbers ──────┘

Numbers show more than shapes do, but a large model takes long to make. What plain PyTorch runs on the CPU may fail
without numbers, such as experts that choose their rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from microp.config.factory import build, read_builder, typed_keys
from microp.settings import (
    LOWERED,
    MODELS,
    Computing,
    DeviceSettings,
    LayerFacts,
    OwnSettings,
    own_settings,
)

if TYPE_CHECKING:
    from microp.model import Layers

T = TypeVar("T")
MOST = 100_000_000  # weights of a model that is made with numbers to be checked; a larger one only if it has to be
_known: dict[str, OwnSettings] = {}  # every point of a sweep asks for the same few


def own_model(node: dict[str, Any], computing: Computing, device: DeviceSettings) -> OwnSettings:
    """Return the settings of the model whose function an option names; what is wrong with it is in `refused`."""
    text = repr((node, computing, device.name))
    if text not in _known:
        try:
            _known[text] = _checked(node, computing, device)
        except ValueError as error:
            keys = {key: value for key, value in node.items() if key not in ("name", "builder")}
            _known[text] = own_settings(str(node.get("name")), str(node.get("builder")), keys, refused=str(error))
    return copy.deepcopy(_known[text])


def _checked(node: dict[str, Any], computing: Computing, device: DeviceSettings) -> OwnSettings:
    import torch

    from microp.model import lowered_types  # torch takes half a second, and only this needs it

    what = f"model.builder={node['builder']}"
    if node["name"] in MODELS:
        raise ValueError(f"model.name={node['name']} is the name of one of microp's models: choose another name")
    facts, inspected = _inspected(node, what)
    if computing.dtype in LOWERED and facts.dtype == "float32":
        place = "cuda" if device.name == "cuda" and torch.cuda.is_available() else "cpu"
        lowered = _said_of(what, lambda: lowered_types(_made(node, inspected), computing, place))
        facts = replace(facts, lowered=lowered)
    return own_settings(node["name"], node["builder"], typed_keys("model", node), facts)


def _inspected(node: dict[str, Any], what: str) -> tuple[LayerFacts, str]:
    """Return what is known of the layers, and the device on which that was found out."""
    from microp.model import code_of, inspect_layers, number_of_weights, seeded

    code = code_of(read_builder("model", node)[0])
    with suppress(ValueError):  # what fails without numbers may be right with them
        made = _made(node, "meta")
        if number_of_weights(made) > MOST:
            return _said_of(what, lambda: inspect_layers(made, code)), "meta"
    with seeded(0):
        made = _made(node, "cpu")
        return _said_of(what, lambda: inspect_layers(made, code)), "cpu"


def _said_of(what: str, inspect: Callable[[], T]) -> T:
    try:
        return inspect()
    except ValueError as error:
        raise ValueError(f"{what} returns {error}") from error
    except SystemExit as error:
        raise ValueError(f"{what} returns layers that end Python ({error!r}): let them return") from error


def _made(node: dict[str, Any], device: str) -> Layers:
    """Return what the function returns, with its tensors on a device."""
    import torch

    from microp.model import Layers

    with torch.device(device):
        return build("model", node, Layers)
