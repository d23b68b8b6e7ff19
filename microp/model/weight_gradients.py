"""W: the weight gradients that B has left, computed and added to the weights' `grad`.

::

    a Linear             gᵀ x                       g the gradient of its output, x its input
    any other module     (y', g) ──► weights        its small graph, see `split_backward`

autograd makes a product and then a sum, and so does W: the bits are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge


class Weights:
    """The weight and the bias of a Linear.

    Attributes:
        weight, bias: None if it is frozen or does not exist.
        aliases: both, as leaves of their own with the same memory, which stand for them in the graph of a forward: the
            weights themselves are leaves of it only where another module than the Linear reads them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._sources = weight, bias
        self.weight = weight if weight.requires_grad else None
        self.bias = bias if bias is not None and bias.requires_grad else None
        self.make_aliases()

    def __iter__(self) -> Iterator[Tensor]:
        return (w for w in (self.weight, self.bias) if w is not None)

    def make_aliases(self) -> None:
        """Make the aliases anew, for weights whose memory may be another one."""
        self.aliases = [w if w is None else w.detach().requires_grad_(w.requires_grad) for w in self._sources]


LinearWeights = tuple[Weights, Tensor, Tensor]
"""The data of W of one Linear: x and the gradient of the output, which may lack x's middle sizes."""


class GraphWeights(NamedTuple):
    """The small graph from which W computes the weight gradients of any other module."""

    roots: list[GradientEdge]
    gradients: list[Tensor]
    weights: list[nn.Parameter]


def add_gradients(
    linears: Sequence[LinearWeights], graphs: Sequence[GraphWeights], several: Collection[Tensor]
) -> None:
    """Add the weight gradients of Linears and of other modules to the weights' `grad`.

    Those of weights of which several of these have a gradient (`used_several_times`) are added up first, as by
    autograd.
    """
    before = {weight: weight.grad for weight in several}
    for weight in several:
        weight.grad = None
    with torch.no_grad():
        for weights, x, gradient in linears:
            _add_products(weights, x.flatten(0, -2), gradient.flatten(0, -2))
    for graph in graphs:
        torch.autograd.backward(graph.roots, graph.gradients, inputs=graph.weights)
    for weight, earlier in before.items():
        if earlier is not None and weight.grad is not None:
            weight.grad = earlier.add_(weight.grad)


def _add_products(weights: Weights, x: Tensor, gradient: Tensor) -> None:
    """Add the gradients of a Linear's weights, from matrices with one row per product."""
    if x.dtype is not gradient.dtype:  # the product was made under a layer's own autocast
        x = x.to(gradient.dtype)
    if weights.weight is not None:
        _add(weights.weight, gradient.t().mm(x))
    if weights.bias is not None:
        _add(weights.bias, gradient.sum(0))


def _add(weight: Tensor, product: Tensor) -> None:
    product = product.to(weight.dtype)
    weight.grad = product if weight.grad is None else weight.grad.add_(product)


def used_several_times(owners: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    """Return the weights that several owners have."""
    weights = [weight for owner in owners for weight in owner]
    if len(set(map(id, weights))) == len(weights):
        return []
    counts = Counter(map(id, weights))
    return [weight for weight in {id(weight): weight for weight in weights}.values() if counts[id(weight)] > 1]
