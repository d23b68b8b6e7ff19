"""W: the weight gradients that B has left, computed and added to the weights' `grad`.

::

    a Linear             gᵀ x                       g the gradient of its output, x its input
    any other module     (y', g) ──► weights        its small graph, see `split_backward`

A small product is added to its weight's gradient in the same call where that gives the same bits: it takes two thirds
of the time of a product and a sum, and no memory. autograd makes a product and a sum; the bits are the same if the
library adds up all rows before it touches the gradient, which depends on the library, the processor and the number of
rows, so each size is tried once. Large products use one piece of memory, one after the other, which stays in the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

SMALL = 2**17  # bytes of a product that is added in the same call, or with others in one call
_FEWEST = 2**8  # numbers in a product; the bits of fewer may be equal by chance
_MOST_ROWS = 1024  # of a product that is tried


class Weights(NamedTuple):
    """The weight and the bias of a Linear; None if it is frozen or does not exist."""

    weight: Tensor | None
    bias: Tensor | None


class LinearWeights(NamedTuple):
    """The data from which W computes the weight gradient of one Linear; the gradient may lack x's middle sizes."""

    weights: Weights
    x: Tensor
    gradient: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.gradient

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Return x and the gradient with one row per product, for x (..., in) and the gradient (..., out)."""
        _, x, gradient = self
        return (x, gradient) if x.dim() == 2 else (x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1]))


class GraphWeights(NamedTuple):
    """The small graph from which W computes the weight gradients of any other module."""

    roots: list[GradientEdge]
    gradients: list[Tensor]
    weights: list[nn.Parameter]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.gradients)

    def run(self) -> None:
        torch.autograd.backward(self.roots, self.gradients, inputs=self.weights)


def add_gradients(parts: Sequence[LinearWeights | GraphWeights]) -> None:
    """Add the weight gradients; those of a weight that is used several times are added up first, as by autograd."""
    several = _used_several_times(parts)
    before = {weight: weight.grad for weight in several}
    for weight in several:
        weight.grad = None
    with torch.no_grad():
        _accumulate((part for part in parts if isinstance(part, LinearWeights)), several)
    for part in parts:
        if isinstance(part, GraphWeights):
            part.run()
    for weight, earlier in before.items():
        if earlier is not None and weight.grad is not None:
            weight.grad = earlier.add_(weight.grad)


def _accumulate(parts: Iterable[LinearWeights], several: Collection[Tensor]) -> None:
    """Add the products to the weights' `grad`: large ones one by one, small ones in the product or in one call."""
    at_once = set(map(id, several))  # in their order
    sums, products = [], []
    memory = _Memory()

    def add(weight: Tensor, product: Tensor) -> None:
        product = product if product.dtype is weight.dtype else product.to(weight.dtype)
        if weight.grad is None:
            weight.grad = product
        elif product.nbytes > SMALL or id(weight) in at_once:
            weight.grad.add_(product)
        else:
            sums.append(weight.grad)
            products.append(product)

    for part in parts:
        weight, bias = part.weights
        x, gradient = part.matrices()
        if weight is not None:
            if weight.grad is None:
                add(weight, gradient.t().mm(x))
            elif weight.nbytes > SMALL:
                add(weight, torch.mm(gradient.t(), x, out=memory.like(weight, x.dtype)))
            elif _can_add_in_product(weight.grad, gradient, x):
                weight.grad.addmm_(gradient.t(), x)
            else:
                add(weight, gradient.t().mm(x))
        if bias is not None:
            add(bias, gradient.sum(0))
    if sums:
        torch._foreach_add_(sums, products)


class _Memory:
    """The memory of large products that are needed one after the other."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None

    def like(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor of the weight's shape in the same memory as before, if that is large enough."""
        if self._tensor is None or self._tensor.numel() < weight.numel() or self._tensor.dtype is not dtype:
            self._tensor = None  # freed first
            self._tensor = torch.empty(weight.numel(), dtype=dtype, device=weight.device)
        return self._tensor[: weight.numel()].view(weight.shape)


def _can_add_in_product(total: Tensor, gradient: Tensor, x: Tensor) -> bool:
    """Return whether `gradientᵀ x` can be added to `total` in one call, without a change of bits."""
    dtype = total.dtype
    return (
        x.dtype is dtype
        and gradient.dtype is dtype
        and x.is_contiguous()
        and gradient.is_contiguous()
        and total.is_contiguous()
        and adds_in_product(len(x), *total.shape, dtype, total.device, torch.get_num_threads())
    )


@cache
def adds_in_product(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, threads: int
) -> bool:
    """Return whether a product of these sizes that adds to a matrix gives the bits of a product and a sum.

    The order in which a library adds up depends on the sizes, not on the numbers, so random numbers show it.
    """
    del threads  # the number that is set; the order may depend on it too
    if rows > _MOST_ROWS or outputs * inputs < _FEWEST:
        return False
    generator = torch.Generator().manual_seed(0)
    sizes = ((rows, outputs), (rows, inputs), (outputs, inputs))
    gradient, x, total = (torch.randn(size, generator=generator).to(device, dtype) for size in sizes)
    return torch.equal(total + gradient.t().mm(x), total.addmm_(gradient.t(), x))


def _used_several_times(parts: Iterable[LinearWeights | GraphWeights]) -> list[Tensor]:
    """Return the weights that several of these parts have a gradient of."""
    weights = [weight for part in parts for weight in part.weights if weight is not None]
    if len(set(map(id, weights))) == len(weights):
        return []
    counts = Counter(map(id, weights))
    return [weight for weight in {id(weight): weight for weight in weights}.values() if counts[id(weight)] > 1]
