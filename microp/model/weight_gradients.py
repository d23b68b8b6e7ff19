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
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

SMALL = 2**17  # bytes of a product that is added in the same call, or with others in one call
_FEWEST = 2**8  # numbers in a product; the bits of fewer may be equal by chance
_MOST_ROWS = 1024  # of a product that is tried


class Weights:
    """The weight and the bias of a Linear.

    Attributes:
        weight, bias: None if it is frozen or does not exist.
        aliases: both, as leaves of their own with the same memory, which stand for them in the graph of a forward: the
            weights themselves are leaves of it only where another module than the Linear reads them.
        is_small: whether a product of the weight's size is small, see above.
    """

    __slots__ = ("_adds", "_both", "_sources", "aliases", "bias", "is_small", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._sources = weight, bias
        self.weight = weight if weight.requires_grad else None
        self.bias = bias if bias is not None and bias.requires_grad else None
        self.make_aliases()
        self.is_small = self.weight is not None and weight.nbytes <= SMALL
        self._both = tuple(w for w in (self.weight, self.bias) if w is not None)
        self._adds: dict[tuple[int, int], bool] = {}  # (rows, threads) -> what `adds_in_product` said

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._both)

    def make_aliases(self) -> None:
        """Make the aliases anew, for weights whose memory may be another one."""
        self.aliases = [w if w is None else w.detach().requires_grad_(w.requires_grad) for w in self._sources]

    def adds_in_product(self, total: Tensor, gradient: Tensor, x: Tensor, threads: int) -> bool:
        """Return whether `gradientᵀ x` can be added to the gradient `total` in one call, without a change of bits."""
        dtype = total.dtype
        if not self.is_small or x.dtype is not dtype or gradient.dtype is not dtype:
            return False
        if not (x.is_contiguous() and gradient.is_contiguous() and total.is_contiguous()):
            return False
        size = x.size(0), threads
        adds = self._adds.get(size)
        if adds is None:
            adds = self._adds[size] = adds_in_product(size[0], *total.shape, dtype, total.device, threads)
        return adds


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
        _accumulate(linears, several)
    for graph in graphs:
        torch.autograd.backward(graph.roots, graph.gradients, inputs=graph.weights)
    for weight, earlier in before.items():
        if earlier is not None:
            weight.grad = earlier if weight.grad is None else earlier.add_(weight.grad)


def _accumulate(linears: Sequence[LinearWeights], several: Collection[Tensor]) -> None:
    """Add the products to the weights' `grad`: large ones one by one, small ones in the product or in one call."""
    threads, sums = torch.get_num_threads(), _Sums(several)
    for weights, x, gradient in linears:
        if x.dim() != 2:
            x, gradient = _matrix(x), _matrix(gradient)
        if x.dtype is not gradient.dtype:  # the product was made under a layer's own autocast
            x = x.to(gradient.dtype)
        if (weight := weights.weight) is not None:
            total = weight.grad
            if total is not None and weights.adds_in_product(total, gradient, x, threads):
                total.addmm_(gradient.t(), x)
            elif total is None or weights.is_small:
                sums.add(weight, gradient.t().mm(x))
            else:
                sums.add(weight, torch.mm(gradient.t(), x, out=sums.memory(weight, x.dtype)))
        if weights.bias is not None:
            sums.add(weights.bias, gradient.sum(0))
    sums.end()


def _matrix(tensor: Tensor) -> Tensor:
    """Return a tensor (..., n) as a matrix with one row per product."""
    return tensor.reshape(-1, tensor.shape[-1])


class _Sums:
    """Adds products to gradients, or remembers small ones for one call at the end.

    Args:
        at_once: the weights that get several products, which are added in their order.
    """

    def __init__(self, at_once: Collection[Tensor]) -> None:
        self._at_once = {id(weight) for weight in at_once}
        self._totals: list[Tensor] = []
        self._products: list[Tensor] = []
        self._memory: Tensor | None = None

    def add(self, weight: Tensor, product: Tensor) -> None:
        """Add a product to the weight's `grad`, or remember it."""
        total = weight.grad
        if product.dtype is not weight.dtype:
            product = product.to(weight.dtype)
        if total is None:
            weight.grad = product
        elif product.nbytes > SMALL or id(weight) in self._at_once:
            total.add_(product)
        else:
            self._totals.append(total)
            self._products.append(product)

    def end(self) -> None:
        """Add what is remembered."""
        if self._totals:
            torch._foreach_add_(self._totals, self._products)

    def memory(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the memory of a large product: that of the one before, if it is large enough."""
        if self._memory is None or self._memory.numel() < weight.numel() or self._memory.dtype is not dtype:
            self._memory = None  # freed first
            self._memory = torch.empty(weight.numel(), dtype=dtype, device=weight.device)
        return self._memory[: weight.numel()].view(weight.shape)


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


def used_several_times(owners: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    """Return the weights that several owners have."""
    weights = [weight for owner in owners for weight in owner]
    if len(set(map(id, weights))) == len(weights):
        return []
    counts = Counter(map(id, weights))
    return [weight for weight in {id(weight): weight for weight in weights}.values() if counts[id(weight)] > 1]
