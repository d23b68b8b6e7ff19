"""W: the weight gradients that B has left, computed and added to the weights' `grad`.

::

    a Linear             gᵀ x                       g the gradient of its output, x its input
    any other module     (y', g) ──► weights        its small graph, see `split_backward`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

SMALL = 2**17  # bytes; smaller products are added to their gradients in one call


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

    def products(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (weight, what must be added to its `grad`), for x (..., in) and the gradient (..., out)."""
        (weight, bias), x, gradient = self
        if x.dim() != 2:
            x, gradient = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        if weight is not None:
            product = gradient.t().mm(x)
            yield weight, product if product.dtype is weight.dtype else product.to(weight.dtype)
        if bias is not None:
            product = gradient.sum(0)
            yield bias, product if product.dtype is bias.dtype else product.to(bias.dtype)


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
    """Add the products to the weights' `grad`: large ones at once, while cached, small ones in one call."""
    at_once = set(map(id, several))  # in their order
    sums, products = [], []
    for part in parts:
        for weight, product in part.products():
            if weight.grad is None:
                weight.grad = product
            elif product.nbytes > SMALL or id(weight) in at_once:
                weight.grad.add_(product)
            else:
                sums.append(weight.grad)
                products.append(product)
    if sums:
        torch._foreach_add_(sums, products)


def _used_several_times(parts: Iterable[LinearWeights | GraphWeights]) -> list[Tensor]:
    """Return the weights that several of these parts have a gradient of."""
    weights = [weight for part in parts for weight in part.weights if weight is not None]
    if len(set(map(id, weights))) == len(weights):
        return []
    counts = Counter(map(id, weights))
    return [weight for weight in {id(weight): weight for weight in weights}.values() if counts[id(weight)] > 1]
