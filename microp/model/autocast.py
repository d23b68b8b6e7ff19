"""The context in which layers compute under autocast, and the types of the tensors that they then make.

::

    with autocast:        x float32 ─┐            ┌─► y bf16        products (Linear, attention, convolution)
                     weight float32 ─┴► bf16 copies              everything else: in the type of its inputs

    types    one forward of the layers, before the run ──► ("int64", "float32", "bfloat16", ...)

It encloses forwards, also those of recomputations, and never a backward: a gradient gets the type of the tensor that
it is of, so that the gradient of a weight is float32 again.

Each device has its own autocast (of a tensor in bf16, LayerNorm and softmax make bf16 on a CPU and float32 on a GPU),
and the meta device, on which large models are checked otherwise, has none. So layers that are not on the device are
tried with fake tensors, which have a shape, a type and a device but no numbers, and take no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from microp.model.own import Layers
from microp.model.slices import causal_mask
from microp.model.trial import rows_for_trial
from microp.model.watch import Watch, device_of, layer_text, tensor_text, tried
from microp.settings import LOWERED, Computing


def open_autocast(computing: Computing, device: torch.device | str) -> AbstractContextManager[Any]:
    """Return the context for the forwards of one thread, which can be entered many times, one after the other.

    torch's cache of bf16 copies stays off: a copy that a forward without a graph has made would give no gradient to a
    later one, and gradients of several uses of a weight would be added in bf16.
    """
    if computing.dtype is None:
        return nullcontext()
    dtype = getattr(torch, LOWERED[computing.dtype])
    return torch.autocast(torch.device(device).type, dtype=dtype, cache_enabled=False)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Let all tensors that this thread makes be fake ones; others can be used with them."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # it imports sympy, and few commands need it

    causal_mask.cache_clear()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        causal_mask.cache_clear()  # a fake mask is nothing for a run


def lowered_types(made: Layers, computing: Computing, device: str = "cpu") -> tuple[str, ...]:
    """Return torch's name of the type of the tensor that enters each layer.

    Args:
        made: the layers, which have been checked without autocast; those that become fake are changed.
        computing: how they compute, not as they are written.
        device: where, `cpu`, or `cuda` if there is one.

    Raises:
        ValueError: a layer or the loss fails under autocast; what follows `<function> returns`.
    """
    how, remedy = " ".join(computing.words), "make them fit, or use dtype=null"
    types, layers = [], list(made.layers)
    is_fake = device_of(layers).type != device
    with fake_tensors() if is_fake else nullcontext(), open_autocast(computing, device):
        if is_fake:
            fake = nn.ModuleList(layers).to_empty(device=device)
            for module in fake.modules():  # tensors that are no weights and no buffers
                plain = {key: value for key, value in vars(module).items() if isinstance(value, Tensor)}
                vars(module).update({key: torch.empty_like(value, device=device) for key, value in plain.items()})
        x, targets = (torch.zeros_like(tensor, device=device) for tensor in rows_for_trial(made, 2))
        for index, layer in enumerate(layers):
            types.append(str(x.dtype).removeprefix("torch."))
            entered = x.detach().requires_grad_(x.is_floating_point())
            what = f"{layer_text(layers, index)}, which fails with {how} for its input {tensor_text(x)}"
            with Watch(entered):
                x = tried(partial(layer, entered), what, remedy)
        given = f"(output {tensor_text(x)}, targets {tensor_text(targets)})"
        tried(lambda: made.loss(x, targets), f"a loss that fails with {how} for {given}", remedy)
    return tuple(types)
