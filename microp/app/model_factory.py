"""Makes the settings of a user's own model: calls its function without numbers, and checks what it returns.

::

    # model/mine.yaml          def layers(width: int) -> Layers
    builder: mine.layers ──► on the meta device ── inspect_layers ──► OwnSettings
    width: 64                        ─────────
                                     typed key
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from microp.app.factory import build, builder_of, typed_keys
from microp.app.user_code import user_code
from microp.settings import LOWERED, MODELS, Computing, OwnSettings, own_settings

if TYPE_CHECKING:
    from microp.model import Layers

_known: dict[str, OwnSettings] = {}  # every point of a sweep asks for the same few


def own_model(node: dict[str, Any], computing: Computing) -> OwnSettings:
    """Return the settings of the model whose function an option names; what is wrong with it is in `refused`.

    Args:
        node: the option: its name, its builder and the builder's keys.
        computing: how the layers will compute.
    """
    text = repr((node, computing))
    if text not in _known:
        try:
            _known[text] = _checked(node, computing)
        except ValueError as error:
            keys = {key: value for key, value in node.items() if key not in ("name", "builder")}
            _known[text] = own_settings(str(node.get("name")), str(node.get("builder")), keys, refused=str(error))
    return copy.deepcopy(_known[text])


def _checked(node: dict[str, Any], computing: Computing) -> OwnSettings:
    from microp.model import code_of, inspect_layers, lowered_types  # torch takes half a second, and only this needs it

    made = _made(node)
    what = f"model.builder={node['builder']}"
    if node["name"] in MODELS:
        raise ValueError(f"model.name={node['name']} is the name of one of microp's models: choose another name")
    with user_code(what):
        try:
            facts = inspect_layers(made, code_of(builder_of("model", node)))
            if computing.dtype in LOWERED and facts.dtype == "float32":
                facts = replace(facts, lowered=lowered_types(_made(node), computing))
        except ValueError as error:
            raise ValueError(f"{what} returns {error}") from error
    return own_settings(node["name"], node["builder"], typed_keys("model", node), facts)


def _made(node: dict[str, Any]) -> Layers:
    """Return what the function returns, on the meta device."""
    import torch

    from microp.model import Layers

    with torch.device("meta"):
        return build("model", node, Layers)
