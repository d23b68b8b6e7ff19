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

A weight that is read by another module than its owner is a leaf of the outer graph, or of another small one. B finds
its gradient there and W adds it, so that none is lost. `division` chooses such a layer to be one small graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge
from torch.nn.functional import linear as linear_map
from torch.utils import _pytree as pytree

from microp.model.weight_gradients import GraphWeights, LinearWeights, Weights, add_gradients, used_several_times


class Deferred:
    """The data of one microbatch that its forward keeps for B, and B for W."""

    def __init__(self) -> None:
        self.linears: list[LinearWeights] = []  # the weight gradients of Linears that W has to compute
        self.graphs: list[GraphWeights] = []  # those of other modules
        # the weights that were read by another module than their owner, with their gradients
        self.read_elsewhere: list[tuple[Tensor, Tensor]] = []
        # of each forward of a Linear before its B: its weights, its input, the input's version, its output in the graph
        self.forwards: list[tuple[Weights, Tensor, int, GradientEdge]] = []
        self._owners: list[int] = []  # the owners of the weights of the last W
        self._several: list[Tensor] = []  # the weights that several of them own

    def backward(self, root: GradientEdge, gradient: Tensor, leaf: Tensor, split: SplitBackward) -> Tensor | None:
        """Run B: return the gradient of `leaf`, or None if it requires none.

        Raises:
            RuntimeError: a layer's input was written in place after its forward.
        """
        # 1. what is wanted: the gradients of the leaf, of each Linear's output, and of weights that others read
        forwards, self.forwards = self.forwards, []
        wanted: list[Any] = [leaf if leaf.requires_grad else split.anchor]
        for _, x, version, edge in forwards:
            if x._version != version:
                raise RuntimeError("the input of a Linear layer was written in place after its forward")
            wanted.append(edge)
        # 2. one pass down, in which small graphs leave what W needs of them
        every = (*wanted, split.anchor, *split.weights)
        gradients: Sequence[Tensor | None] = _engine_run_backward(  # None for those below which the root does not lie
            (root,), (gradient,), False, False, every, allow_unreachable=True, accumulate_grad=False
        )
        # 3. keep what W needs, in the order in which the full backward adds it
        for (owner, x, _, _), caught in zip(reversed(forwards), gradients[len(forwards) : 0 : -1], strict=True):
            if caught is not None:
                self.linears.append((owner, x, caught))
        self.keep_read_elsewhere(split.weights, gradients[len(wanted) + 1 :])
        return gradients[0] if leaf.requires_grad else None

    def keep_read_elsewhere(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradients that a graph has of weights whose owner is another module; None where it has none."""
        self.read_elsewhere += [(w, g) for w, g in zip(weights, gradients, strict=True) if g is not None]

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are kept between I and W."""
        for _, x, gradient in self.linears:
            yield from (x, gradient)
        for graph in self.graphs:
            yield from graph.gradients
        yield from (gradient for _, gradient in self.read_elsewhere)

    def run(self) -> None:
        """Run W: add the remaining weight gradients to the weights' `grad`."""
        owners: list[Iterable[Tensor]] = [
            *(owner for owner, _, _ in self.linears),
            *(graph.weights for graph in self.graphs),
        ]
        if (ids := list(map(id, owners))) != self._owners:
            self._owners, self._several = ids, used_several_times(owners)
        add_gradients(self.linears, self.graphs, self._several)
        for weight, gradient in self.read_elsewhere:
            weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
        self.linears, self.graphs, self.read_elsewhere = [], [], []


def run_together(several: Sequence[Deferred]) -> None:
    """Run the W of several microbatches, with one product per Linear over their concatenated rows.

    The product also takes the sum over the microbatches, so the last bits of the gradients can differ.
    """
    same: dict[Weights, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for deferred in several:
        for weights, x, gradient in deferred.linears:
            same[weights].append((x.flatten(0, -2), gradient.flatten(0, -2)))
        deferred.linears = []
        deferred.run()
    joined = []
    for weights, calls in same.items():
        inputs, gradients = zip(*calls, strict=True)
        joined.append((weights, torch.cat(inputs), torch.cat(gradients)))
    add_gradients(joined, (), used_several_times(same))


class SplitBackward:
    """Makes layers divide their backward while `deferred` is set.

    Each of the outermost modules below the layers that own weights is divided as a unit.
    """

    def __init__(self, layers: Iterable[nn.Module], is_lowered: bool = False) -> None:
        self.deferred: Deferred | None = None
        # makes results require a gradient even if no input does, so that B reaches the small graphs
        self.anchor = torch.empty(0, requires_grad=True)
        self.is_lowered = is_lowered
        self._before: dict[nn.Module, Any] = {}  # a divided module -> the forward of its own that it had, or None
        self._linears: dict[nn.Module, Weights] = {}
        layers = nn.ModuleList(layers)
        self.weights = trained(layers)
        for layer in layers:
            self.divide(layer)

    def divide(self, layer: nn.Module) -> None:
        """Divide the backward of each part of a layer that owns weights, or of the layer as a whole.

        As a whole, if its weights have hooks, which are then called as often as by the full backward, or if a part of
        it is compiled: the forwards inside cannot be replaced.
        """
        if has_hooks(layer) or any(map(_is_compiled, layer.modules())):
            self.divide_as_one(layer)
            return
        for owner in weight_owners(layer):
            if owner in self._before:
                continue
            if isinstance(owner, nn.Linear) and _is_plain(owner):
                self._replace(owner, self._linear(owner))
            else:
                known = set() if _is_from_torch(owner) else set(trained(layer)) - set(trained(owner))
                self._replace(owner, self._graph(owner, list(known)))

    def divide_as_one(self, layer: nn.Module) -> None:
        """Divide the backward of a layer as a whole."""
        self.undo(layer)
        if trained(layer) and not isinstance(layer, torch.jit.ScriptModule):
            self._replace(layer, self._graph(layer, []))

    def undo(self, layer: nn.Module) -> None:
        """Let a layer compute as it did before its backward was divided."""
        for module in layer.modules():
            if module in self._before:
                del module.forward
                if (before := self._before.pop(module)) is not None:
                    module.forward = before
                self._linears.pop(module, None)

    def begin_step(self) -> None:
        """Use the memory that the weights have now, for which they may have got another one since the last step."""
        for weights in self._linears.values():
            weights.make_aliases()

    def _replace(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._before[module] = vars(module).get("forward")
        module.forward = forward

    def _graph(self, owner: nn.Module, others: list[nn.Parameter]) -> Callable[..., Any]:
        """Return a forward that makes a small graph; `others`: weights that are not the owner's and may be read."""
        forward, weights = owner.forward, trained(owner)

        def divided(*args: Any, **kwargs: Any) -> Any:
            deferred = self.deferred
            if deferred is None or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            call = _Call(forward, (args, kwargs), weights, others, deferred)
            results = _Divided.apply(call, self.anchor, *call.tensors)
            return pytree.tree_unflatten(list(results), call.result_form)

        return divided

    def _linear(self, owner: nn.Linear) -> Callable[[Tensor], Tensor]:
        """Return the forward of a Linear, in whose graph other leaves stand for the weights."""
        weight, bias, is_lowered = owner.weight, owner.bias, self.is_lowered
        weights = self._linears[owner] = Weights(weight, bias)

        def linear(x: Tensor) -> Tensor:
            deferred = self.deferred
            if deferred is None or not torch.is_grad_enabled():
                return linear_map(x, weight, bias)
            if is_lowered:
                x = _product_input(x)
            y = linear_map(x, *weights.aliases)  # type: ignore[arg-type]
            made = y if y._base is None else y._base  # an operation in place gives a view another node
            edge = GradientEdge(made.grad_fn, made.output_nr)  # type: ignore[arg-type]
            deferred.forwards.append((weights, x, x._version, edge))
            return y

        return linear


def run_backward(root: GradientEdge, gradient: Tensor) -> None:
    """Add the gradients of everything below `root` to its leaves' `grad`, and free the graph.

    autograd's engine is called without the checks of `torch.autograd.backward` and `grad`. They compare the shapes of
    outputs and gradients as symbols, for which they import sympy (0.2 s in every process) and take about 20 us per
    call; the engine itself compares shapes, and the sender of a tensor has done so already.
    """
    _engine_run_backward((root,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def trained(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of a module that are not frozen."""
    return [weight for weight in module.parameters() if weight.requires_grad]


def has_hooks(module: nn.Module) -> bool:
    """Return whether a weight of a module has a hook, which autograd has to call."""
    return any(weight._backward_hooks or weight._post_accumulate_grad_hooks for weight in trained(module))


def weight_owners(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules, from `module` downwards, that directly own weights that are not frozen."""
    if any(weight is not None and weight.requires_grad for weight in module._parameters.values()):
        yield module
    else:
        for child in module.children():
            yield from weight_owners(child)


def _is_compiled(module: nn.Module) -> bool:
    """Return whether a module is the result of torch.compile, which holds the module as it was written, or a script."""
    return "_orig_mod" in dict(module.named_children()) or isinstance(module, torch.jit.ScriptModule)


def _is_plain(linear: nn.Linear) -> bool:
    """Return whether a Linear computes as torch wrote it, with parameters that no forward makes anew."""
    is_torch_s = type(linear) is nn.Linear and "forward" not in vars(linear)
    return is_torch_s and {"weight", "bias"} == set(linear._parameters)


def _is_from_torch(module: nn.Module) -> bool:
    """Return whether the forward of a module is torch's, which reads no weights but its own."""
    return type(module).__module__.startswith("torch.nn.modules.") and "forward" not in vars(module)


def _product_input(x: Tensor) -> Tensor:
    """Return the tensor that a product computes with if it is given `x`; under autocast a copy in its type."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.is_floating_point() and x.dtype is not torch.float64:
        return x.to(torch.get_autocast_dtype(kind))
    return x


class _Call:
    """One forward of a module that is not a plain Linear, with its small graph.

    `tensors` are the distinct tensors among its arguments, in any nesting; `leaves` their copies, from which the small
    graph is recorded; `constants` the indices of the results that are tensors without a gradient.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        weights: list[nn.Parameter],
        others: list[nn.Parameter],
        deferred: Deferred,
    ) -> None:
        self._forward, self._weights, self._others, self._deferred = forward, weights, others, deferred
        self._arguments, self._form = pytree.tree_flatten(arguments)
        self.tensors = list({id(value): value for value in self._arguments if isinstance(value, Tensor)}.values())

    def run(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Run the forward and record the small graph; return the results detached from it (non-tensors unchanged)."""
        # 1. the arguments with leaves in place of the tensors; a tensor that is passed twice stays one
        self.leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        leaf_of = {id(tensor): leaf for tensor, leaf in zip(self.tensors, self.leaves, strict=True)}
        arguments = [leaf_of[id(value)] if isinstance(value, Tensor) else value for value in self._arguments]
        args, kwargs = pytree.tree_unflatten(arguments, self._form)
        # 2. the small graph
        with torch.enable_grad():
            results, self.result_form = pytree.tree_flatten(self._forward(*args, **kwargs))
        # 3. where its backward begins
        self._indices = [i for i, r in enumerate(results) if isinstance(r, Tensor) and r.requires_grad]
        self.constants = [i for i, r in enumerate(results) if isinstance(r, Tensor) and not r.requires_grad]
        self._roots = [get_gradient_edge(results[i]) for i in self._indices]
        return tuple(r.detach() if isinstance(r, Tensor) else r for r in results)

    def input_gradients(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """Run B: return the gradient of each input, or None if it requires none; leave the weights' for W."""
        of_results = [gradients[i] for i in self._indices]
        wanted = [*(leaf for leaf in self.leaves if leaf.requires_grad), *self._others]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if self._roots:
            self._deferred.graphs.append(GraphWeights(self._roots, of_results, self._weights))
            if wanted:
                found = torch.autograd.grad(self._roots, wanted, of_results, retain_graph=True, allow_unused=True)
        gradient_of = iter(found)
        of_leaves = [next(gradient_of) if leaf.requires_grad else None for leaf in self.leaves]
        self._deferred.keep_read_elsewhere(self._others, list(gradient_of))
        return of_leaves


class _Divided(torch.autograd.Function):
    """The node of the outer graph that stands for such a module."""

    @staticmethod
    def forward(ctx: Any, call: _Call, _anchor: Tensor, *tensors: Tensor) -> tuple[Any, ...]:
        ctx.call = call
        results = call.run(tensors)
        ctx.mark_non_differentiable(*(results[i] for i in call.constants))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        call, ctx.call = ctx.call, None  # only the data for W keep the small graph alive
        return (None, None, *call.input_gradients(gradients))
