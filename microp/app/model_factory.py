"""Makes the settings of a user's own model: calls its function without numbers, and checks what it returns.

::

    # model/mine.yaml          def layers(width: int) -> Layers
    builder: mine.layers ──► on the meta device ── inspect_layers ──► OwnSettings
    width: 64                        ─────────
                                     typed key
"""

from __future__ import annotations

import copy
from typing import Any

from microp.app.factory import build, builder_of, typed_keys
from microp.settings import GptSettings, MlpSettings, OwnSettings, own_settings

_OURS = {"mlp": MlpSettings, "gpt": GptSettings}
_known: dict[str, OwnSettings] = {}  # every point of a sweep asks for the same few


def own_model(node: dict[str, Any]) -> OwnSettings:
    """Return the settings of the model whose function an option names; what is wrong with it is in `refused`."""
    text = repr(node)
    if text not in _known:
        try:
            _known[text] = _checked(node)
        except ValueError as error:
            keys = {key: value for key, value in node.items() if key not in ("name", "builder")}
            _known[text] = own_settings(str(node.get("name")), str(node.get("builder")), keys, refused=str(error))
    return copy.deepcopy(_known[text])


def _checked(node: dict[str, Any]) -> OwnSettings:
    import torch  # takes half a second, and only a user's own model needs it here

    from microp.model import Layers, code_of, inspect_layers

    with torch.device("meta"):
        made = build("model", node, Layers)
    what = f"model.builder={node['builder']}"
    if node["name"] in _OURS:
        raise ValueError(f"model.name={node['name']} is the name of one of microp's models: choose another name")
    try:
        facts = inspect_layers(made, code_of(builder_of("model", node)))
    except ValueError as error:
        raise ValueError(f"{what} returns {error}") from error
    return own_settings(node["name"], node["builder"], typed_keys("model", node), facts)
