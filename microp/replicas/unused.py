"""Sums gradients of which some ranks have none: a weight that nobody has used has none after the sum either.

::

    used by both       g + h       = g + h
    used by one        g + -0.0    = g          bit for bit
    used by nobody     -0.0 + -0.0 = -0.0       no gradient: the optimizer leaves the weight alone, as in one process

The first element tells: that of a gradient that is there is never -0.0, because 0.0 is added to it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def to_sum(weight: nn.Parameter, out: Tensor | None = None) -> Tensor:
    """Return a weight's gradient as one dimension, to be summed: in `out`, of the weight's shape, or where it is."""
    if weight.grad is None:
        flat = torch.empty_like(weight, memory_format=torch.contiguous_format) if out is None else out
        return flat.fill_(-0.0).view(-1)
    flat = (weight.grad.contiguous() if out is None else out.copy_(weight.grad)).view(-1)
    flat[:1].add_(0.0)
    return flat


def is_unused(total: Tensor) -> bool:
    """Return whether no rank had a gradient that is in the sum; waits for a GPU."""
    first = total.reshape(-1)[:1].real
    return bool(((first == 0) & first.signbit()).all())
