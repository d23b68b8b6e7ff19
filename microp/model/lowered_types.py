"""Finds the types of the tensors between a user's own layers under autocast.

::

    layers on the meta device ─► fake tensors of the CPU ── one forward under autocast ──► ("int64", "float32",
                                                                                             "bfloat16", ...)

A fake tensor has a shape, a type and a device but no numbers, so that a large model is tried in no time. The meta
device, on which layers are checked otherwise, has no autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from microp.model.autocast import open_autocast
from microp.model.inspection import Watch, layer_text, tensor_text, tried
from microp.model.own import Layers
from microp.settings import Computing


def lowered_types(made: Layers, computing: Computing) -> tuple[str, ...]:
    """Return torch's name of the type of the tensor that enters each layer.

    Args:
        made: the layers, which are on the meta device and have been checked without autocast; they are changed.
        computing: how they compute.

    Raises:
        ValueError: a layer or the loss fails under autocast; what follows `<function> returns`.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # it imports sympy, and only this needs it

    how, remedy = " ".join(computing.words), "make them fit, or use dtype=null"
    types, mode, layers = [], FakeTensorMode(allow_non_fake_inputs=True), list(made.layers)
    _to_cpu(layers, mode)
    with mode, open_autocast(computing, "cpu"):
        x = tokens = torch.zeros((2, made.context), dtype=torch.int64)
        for index, layer in enumerate(layers):
            types.append(str(x.dtype).removeprefix("torch."))
            entered = x.detach().requires_grad_(x.is_floating_point())
            what = f"{layer_text(layers, index)}, which fails with {how} for its input {tensor_text(x)}"
            with Watch(entered):
                x = tried(partial(layer, entered), what, remedy)
        given = f"(output {tensor_text(x)}, targets {tensor_text(tokens)})"
        tried(lambda: made.loss(x, tokens), f"a loss that fails with {how} for {given}", remedy)
    return tuple(types)


def _to_cpu(layers: Sequence[nn.Module], mode: Any) -> None:
    """Put fake tensors of the CPU in the place of all tensors of the layers."""
    from torch._subclasses.fake_tensor import FakeTensor

    known: dict[int, Tensor] = {}  # a weight that several modules share stays one

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            found = FakeTensor(mode, tensor.detach().to("meta"), torch.device("cpu"))
            is_weight = isinstance(tensor, nn.Parameter)
            known[id(tensor)] = nn.Parameter(found, tensor.requires_grad) if is_weight else found
        return known[id(tensor)]

    for module in nn.ModuleList(layers).modules():
        holders: tuple[Any, ...] = (module._parameters, module._buffers, vars(module))
        for holder in holders:
            holder.update({key: fake(value) for key, value in holder.items() if isinstance(value, Tensor)})
