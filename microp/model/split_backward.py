"""The backward in two parts: the gradient of the input first (B), the gradient of the weights later (W).

::

    F   x ═ Linear ═ y ═ other layers ═►      keeps each Linear's x, and y's node in the graph
    B   ◄═══════════ g ◄═══════════════       one pass down to the input, which also keeps each g
    W   weight.grad += gᵀ x                   the same operation as in the full backward

    any other module that owns weights has a small graph of its own inside the outer one
    F   x ─┤x' ═ module ═ y'├─ y          inside: recorded from a leaf x'
    B   ◄──┤x' ◄════════ g  ├◄─ g         inside: only for x'; (y', g) is kept
    W       weights ◄═══ g                inside: only for the weights; the small graph is freed

B frees the outer graph. Hooks, several uses of a layer and tied weights keep working; bits are the full backward's.
(Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import linear as linear_map
from torch.utils._pytree import tree_flatten, tree_unflatten

from microp.model.autocast import product_input
from microp.model.engine_calls import gradients_of
from microp.model.weight_gradients import (
    GraphWeights,
    LinearWeights,
    SmallLinears,
    Weights,
    add_gradients,
    used_several_times,
)


class Deferred:
    """The data of one microbatch that its forward keeps for B, and B for W.

    Attributes:
        forwards: of each forward of a Linear before its B: its weights, its input with the version of it (to
            detect a later write), and its output in the graph.
        linears: the weight gradients of Linears that W has to compute.
        graphs: those of other modules.
    """

    def __init__(self) -> None:
        self.linears: list[LinearWeights] = []
        self.graphs: list[GraphWeights] = []
        self.forwards: list[tuple[Weights, Tensor, int, GradientEdge]] = []
        self._small = SmallLinears()
        self._owners: list[int] = []  # the owners of the weights of the last W
        self._several: list[Tensor] = []  # the weights that several of them own

    def backward(self, root: GradientEdge, gradient: Tensor, leaf: Tensor, anchor: Tensor) -> Tensor | None:
        """Run B: return the gradient of `leaf`, or None if it requires none.

        Args:
            root: the output's node in the graph.
            gradient: the output's gradient.
            leaf: the stage's input.
            anchor: the anchor of the stage's `SplitBackward`.

        Raises:
            RuntimeError: a layer's input was written in place after its forward.
        """
        forwards, self.forwards = self.forwards, []
        wanted: list[Any] = [anchor]
        for _, x, version, edge in forwards:
            if x._version != version:
                raise RuntimeError("the input of a Linear layer was written in place after its forward")
            wanted.append(edge)
        if leaf.requires_grad:
            wanted.append(leaf)
        found = gradients_of(wanted, root, gradient)
        for (owner, x, _, _), caught in zip(reversed(forwards), found[len(forwards) : 0 : -1], strict=True):
            if caught is not None:
                self.linears.append((owner, x, caught))
        return found[-1] if leaf.requires_grad else None

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are kept between B and W."""
        for _, x, gradient in self.linears:
            yield from (x, gradient)
        for graph in self.graphs:
            yield from graph.gradients

    def run(self) -> None:
        """Run W: add the remaining weight gradients to the weights' `grad`."""
        owners = [id(owner) for owner, _, _ in self.linears] + [id(graph.weights) for graph in self.graphs]
        if owners != self._owners:
            self._owners = owners
            self._several = used_several_times([*(o for o, _, _ in self.linears), *(g.weights for g in self.graphs)])
        if self._several or self.graphs or not self._small.add(self.linears):
            add_gradients(self.linears, self.graphs, self._several)
        self.linears, self.graphs = [], []


def run_together(several: Sequence[Deferred]) -> None:
    """Run the W of several microbatches, with one product per Linear over their concatenated rows.

    The product also takes the sum over the microbatches, so the last bits of the gradients can differ.
    """
    same: dict[Weights, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for deferred in several:
        for weights, x, gradient in deferred.linears:
            same[weights].append((x.flatten(0, -2), gradient.flatten(0, -2)))
        for graph in deferred.graphs:
            graph.run()
        deferred.linears, deferred.graphs = [], []
    joined = []
    for weights, calls in same.items():
        inputs, gradients = zip(*calls, strict=True)
        joined.append((weights, torch.cat(inputs), torch.cat(gradients)))
    add_gradients(joined, (), used_several_times(same))


class SplitBackward:
    """Makes the layers below `module` that own weights divide their backward while `deferred` is set.

    Args:
        module: any module; each of the outermost modules that own weights is divided as a unit.
        is_lowered: whether its forwards run under autocast.
    """

    def __init__(self, module: nn.Module, is_lowered: bool = False) -> None:
        self.deferred: Deferred | None = None
        self._is_lowered = is_lowered
        self._linears: list[Weights] = []
        self._hooked: set[Weights] = set()
        # Makes results require a gradient even if no input does, so that B reaches the small graphs.
        self.anchor = torch.empty(0, requires_grad=True)
        for owner in set(weight_owners(module)):
            owner.forward = self._wrap(owner, owner.forward)
        self.look_for_hooks()

    def look_for_hooks(self) -> None:
        """Find the Linears whose weights have hooks, which autograd has to call; a step has these until its end."""
        self._hooked = {
            weights
            for weights in self._linears
            if any(weight._backward_hooks or weight._post_accumulate_grad_hooks for weight in weights)
        }

    def _wrap(self, owner: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        weights = [weight for weight in owner.parameters() if weight.requires_grad]

        def divided(*args: Any, **kwargs: Any) -> Any:
            deferred = self.deferred
            if deferred is None or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            inputs = _Inputs(args, kwargs)
            call = _Call(forward, inputs, weights, deferred)
            results = _Divided.apply(call, self.anchor, *inputs.tensors)
            return tree_unflatten(list(results), call.result_form)

        if isinstance(owner, nn.Linear) and _is_plain(owner):
            return self._wrap_linear(owner, divided) if weights else forward
        return divided

    def _wrap_linear(self, owner: nn.Linear, divided: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the forward of a Linear; `divided`: one that lets autograd call the hooks of its weights."""
        weight, bias, is_lowered = owner.weight, owner.bias, self._is_lowered
        wanted = Weights(*(w if w is not None and w.requires_grad else None for w in (weight, bias)))
        self._linears.append(wanted)

        def linear(x: Tensor) -> Tensor:
            deferred = self.deferred
            if deferred is None or not torch.is_grad_enabled():
                return linear_map(x, weight, bias)
            if wanted in self._hooked:
                return divided(x)
            if is_lowered:
                x = product_input(x)
            y = linear_map(x, weight, bias)
            made = y if y._base is None else y._base  # an operation in place gives a view another node
            edge = GradientEdge(made.grad_fn, made.output_nr)  # type: ignore[arg-type]
            deferred.forwards.append((wanted, x, x._version, edge))
            return y

        return linear


def _is_plain(linear: nn.Linear) -> bool:
    """Return whether `linear` is no derived class and its weights are parameters, not recomputed in each forward."""
    return type(linear) is nn.Linear and {"weight", "bias"} == set(linear._parameters)


def weight_owners(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules, from `module` downwards, that directly own weights."""
    if any(weight is not None for weight in module._parameters.values()):
        yield module
    else:
        for child in module.children():
            yield from weight_owners(child)


class _Inputs:
    """The arguments of a call in any nesting, and the distinct tensors among them."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._leaves, self._form = tree_flatten((args, kwargs))
        self.tensors = list({id(leaf): leaf for leaf in self._leaves if isinstance(leaf, Tensor)}.values())

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with `self.tensors` replaced by `tensors`; a tensor passed twice stays one tensor."""
        others = {id(old): new for old, new in zip(self.tensors, tensors, strict=True)}
        leaves = [others[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._form)
        return args, kwargs


class _Call:
    """One forward of a module that is not a plain Linear, with its small graph."""

    def __init__(
        self, forward: Callable[..., Any], inputs: _Inputs, weights: list[nn.Parameter], deferred: Deferred
    ) -> None:
        self._forward, self._inputs, self._weights, self._deferred = forward, inputs, weights, deferred

    def run(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Run the forward and record the small graph; return the results detached from it (non-tensors unchanged)."""
        self.leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        args, kwargs = self._inputs.with_tensors(self.leaves)
        with torch.enable_grad():
            results, self.result_form = tree_flatten(self._forward(*args, **kwargs))
        self._indices = [i for i, r in enumerate(results) if isinstance(r, Tensor) and r.requires_grad]
        self._roots = [get_gradient_edge(results[i]) for i in self._indices]
        return tuple(r.detach() if isinstance(r, Tensor) else r for r in results)

    def input_gradients(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """Run B: return the gradient of each input, or None if it requires none; leave the weights' for W."""
        wanted = [leaf for leaf in self.leaves if leaf.requires_grad]
        own = [gradients[i] for i in self._indices]
        found: Sequence[Tensor | None] = ()
        if wanted:
            found = torch.autograd.grad(self._roots, wanted, own, retain_graph=True, allow_unused=True)
        by_leaf = iter(found)
        self._deferred.graphs.append(GraphWeights(self._roots, own, self._weights))
        return [next(by_leaf) if leaf.requires_grad else None for leaf in self.leaves]


class _Divided(torch.autograd.Function):
    """The node of the outer graph that stands for such a module."""

    @staticmethod
    def forward(ctx: Any, call: _Call, _anchor: Tensor, *tensors: Tensor) -> tuple[Any, ...]:
        ctx.call = call
        return call.run(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        call, ctx.call = ctx.call, None  # only the data for W keep the small graph alive
        return (None, None, *call.input_gradients(gradients))
