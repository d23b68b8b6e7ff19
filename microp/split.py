"""The backward in two parts: the gradient of the input now (B), that of the weights later (W).

::

    a layer that owns weights is a small graph of its own

    F   x ─┤x' ═ layer ═ y'├─ y          inside: recorded from a leaf x'
    B   ◄──┤x' ◄═══════ g  ├◄─ g         inside: for x' alone; (y', g) goes to the queue
    W       weights ◄══ g                inside: for the weights alone; the small graph is freed

The outer graph is used up and freed by B, as in a full backward. Nothing walks over a
graph: hooks, several uses of one layer and tied weights keep working, and the operations
are those of the full backward, so that the gradients have its bits (Zero Bubble Pipeline
Parallelism, arXiv 2401.10241, section 2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten


class Deferred(NamedTuple):
    """One layer's weight gradient that B has left for W."""

    roots: list[GradientEdge]
    gradients: list[Tensor]
    weights: list[nn.Parameter]

    def run(self) -> None:
        """Add it to the weights' `grad`, and free the layer's graph."""
        torch.autograd.backward(self.roots, self.gradients, inputs=self.weights)


class SplitBackward:
    """Lets the layers below `module` that own weights divide their backward while `queue` is set.

    Args:
        module: any module; the outermost modules that own weights are divided, each whole.
    """

    def __init__(self, module: nn.Module) -> None:
        self.queue: list[Deferred] | None = None
        # Lets a result require a gradient where no input does, so that B comes here.
        self._anchor = torch.empty(0, requires_grad=True)
        for owner in set(weight_owners(module)):
            owner.forward = self._wrap(owner, owner.forward)

    def _wrap(self, owner: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        weights = [weight for weight in owner.parameters() if weight.requires_grad]

        def divided(*args: Any, **kwargs: Any) -> Any:
            if self.queue is None or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            inputs = _Inputs(args, kwargs)
            call = _Call(forward, inputs, weights, self.queue)
            results = _Divided.apply(call, self._anchor, *inputs.tensors)
            return tree_unflatten(list(results), call.result_form)

        return divided


def weight_owners(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules from `module` on that have weights of their own."""
    if any(weight is not None for weight in module._parameters.values()):
        yield module
    else:
        for child in module.children():
            yield from weight_owners(child)


class _Inputs:
    """A call's arguments, whatever their form, and the tensors among them, each once."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._leaves, self._form = tree_flatten((args, kwargs))
        self.tensors = list({id(leaf): leaf for leaf in self._leaves if isinstance(leaf, Tensor)}.values())

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with others in the place of `self.tensors`; what was one tensor stays one."""
        others = {id(old): new for old, new in zip(self.tensors, tensors, strict=True)}
        leaves = [others[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._form)
        return args, kwargs


class _Call:
    """One forward of one layer, from its inside."""

    def __init__(
        self, forward: Callable[..., Any], inputs: _Inputs, weights: list[nn.Parameter], queue: list[Deferred]
    ) -> None:
        self._forward, self._inputs, self._weights, self._queue = forward, inputs, weights, queue

    def run(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Record the small graph; its results, cut off from it (what is no tensor goes through)."""
        self.leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        args, kwargs = self._inputs.with_tensors(self.leaves)
        with torch.enable_grad():
            results, self.result_form = tree_flatten(self._forward(*args, **kwargs))
        self._places = [place for place, r in enumerate(results) if isinstance(r, Tensor) and r.requires_grad]
        self._roots = [get_gradient_edge(results[place]) for place in self._places]
        return tuple(r.detach() if isinstance(r, Tensor) else r for r in results)

    def input_gradients(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """B: the gradients of the inputs that want one; the rest goes to the queue."""
        wanted = [leaf for leaf in self.leaves if leaf.requires_grad]
        own = [gradients[place] for place in self._places]
        found: Sequence[Tensor | None] = ()
        if wanted:
            found = torch.autograd.grad(self._roots, wanted, own, retain_graph=True, allow_unused=True)
        by_leaf = iter(found)
        self._queue.append(Deferred(self._roots, own, self._weights))
        return [next(by_leaf) if leaf.requires_grad else None for leaf in self.leaves]


class _Divided(torch.autograd.Function):
    """What the outer graph sees of a layer."""

    @staticmethod
    def forward(ctx: Any, call: _Call, _anchor: Tensor, *tensors: Tensor) -> tuple[Any, ...]:
        ctx.call = call
        return call.run(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        call, ctx.call = ctx.call, None  # its graph lives on in the queue alone
        return (None, None, *call.input_gradients(gradients))
