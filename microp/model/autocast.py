"""The context in which layers compute, and what it makes of a product's input.

::

    with autocast:        x float32 ─┐            ┌─► y bf16        products (Linear, attention, convolution)
                     weight float32 ─┴► bf16 copies              everything else: in the type of its inputs

It encloses forwards, also those of recomputations, and never a backward: a gradient gets the type of the tensor that
it is of, so that the gradient of a weight is float32 again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

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


def product_input(x: Tensor) -> Tensor:
    """Return the tensor that a product computes with if it is given `x`; under autocast a copy in its type."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.is_floating_point() and x.dtype is not torch.float64:
        return x.to(torch.get_autocast_dtype(kind))
    return x
