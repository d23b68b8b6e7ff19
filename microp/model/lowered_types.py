"""Finds the types of the tensors between a user's own layers under autocast.

::

    layers on the meta device ─► fake tensors of a device ── one forward under autocast ──► ("int64", "float32",
                                                                                              "bfloat16", ...)

A fake tensor has a shape, a type and a device but no numbers, so that a large model is tried in no time, and none of a
GPU's memory is taken. The meta device, on which large models are checked otherwise, has no autocast, and each device
has its own: of a tensor in bf16, LayerNorm and softmax make bf16 on a CPU and float32 on a GPU. For a CPU, layers with
numbers are run as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from microp.model.inspection import Watch, device_of, layer_text, tensor_text, tried
from microp.model.own import Layers
from microp.settings import LOWERED, Computing


def lowered_types(made: Layers, computing: Computing, device: str = "cpu") -> tuple[str, ...]:
    """Return torch's name of the type of the tensor that enters each layer.

    Args:
        made: the layers, which have been checked without autocast; those that become fake are changed.
        computing: how they compute, not as they are written.
        device: where, `cpu`, or `cuda` with a build of torch that has it.

    Raises:
        ValueError: a layer or the loss fails under autocast; what follows `<function> returns`.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # it imports sympy, and only this needs it

    how, remedy = " ".join(computing.words), "make them fit, or use dtype=null"
    types, layers = [], list(made.layers)
    mode: Any = nullcontext()
    if device_of(layers).type != device:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        _to_device(layers, mode, torch.device(device))
    with mode, _autocast(device, getattr(torch, LOWERED[computing.dtype or ""])):
        x = tokens = torch.zeros((2, made.context), dtype=torch.int64, device=device)
        for index, layer in enumerate(layers):
            types.append(str(x.dtype).removeprefix("torch."))
            entered = x.detach().requires_grad_(x.is_floating_point())
            what = f"{layer_text(layers, index)}, which fails with {how} for its input {tensor_text(x)}"
            with Watch(entered):
                x = tried(partial(layer, entered), what, remedy)
        given = f"(output {tensor_text(x)}, targets {tensor_text(tokens)})"
        tried(lambda: made.loss(x, tokens), f"a loss that fails with {how} for {given}", remedy)
    return tuple(types)


@contextmanager
def _autocast(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Turn autocast on also for a device that is not here, for which `torch.autocast` does nothing."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(False)  # as in `open_autocast`
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.set_autocast_cache_enabled(before[2])


def _to_device(layers: Sequence[nn.Module], mode: Any, device: torch.device) -> None:
    """Put fake tensors of a device in the place of all tensors of the layers."""
    from torch._subclasses.fake_tensor import FakeTensor

    known: dict[int, Tensor] = {}  # a weight that several modules share stays one

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            found = FakeTensor(mode, tensor.detach().to("meta"), device)
            is_weight = isinstance(tensor, nn.Parameter)
            known[id(tensor)] = nn.Parameter(found, tensor.requires_grad) if is_weight else found
        return known[id(tensor)]

    for module in nn.ModuleList(layers).modules():
        holders: tuple[Any, ...] = (module._parameters, module._buffers, vars(module))
        for holder in holders:
            holder.update({key: fake(value) for key, value in holder.items() if isinstance(value, Tensor)})
