"""Chooses how the backward of each layer is divided, and checks that I and W together are the full backward.

::

    full        layer ─ backward                            gradients of the input and of every weight
    by parts    each module that owns weights for itself    equal? ── yes ─► this way, the quicker one
                                                              └ no
    as one      the whole layer is one small graph          equal? ── yes ─► this way
                                                              └ no ────────► the layer is refused by name

By parts is not the full backward if, for example, a layer reads the weights of its parts itself, as in
`F.linear(x, torch.cat([q.weight, k.weight, v.weight]))`, or recomputes a part in its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from microp.model.split_backward import Deferred, SplitBackward, has_hooks, run_backward
from microp.model.watch import error_text

Run = Callable[[nn.Module, Tensor], Tensor]
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest number of a gradient
_LOWERED = 0.05  # the same for types of 16 bits, and under autocast


def choose_division(split: SplitBackward, layer: nn.Module, sample: Tensor, run: Run) -> bool:
    """Divide the backward of a layer by its parts, or as one if only that gives the full backward; return which.

    `sample` is an input of a few rows; `run` returns what a layer makes of an input, with the same random numbers each
    time.

    Raises:
        ValueError: either way gives other gradients, or fails.
    """
    split.undo(layer)
    full = _full(layer, sample, run)
    types = {gradient.dtype for gradient in full if gradient is not None}
    tolerance = _LOWERED if split.is_lowered else max((_TOLERANCE.get(kind, _LOWERED) for kind in types), default=0.0)
    # Hooks may be made in a layer's first forward; numbers that are not finite prove nothing.
    is_plain = not has_hooks(layer) and all(g is None or bool(g.isfinite().all()) for g in full)
    said = "other gradients than in one backward"
    for by_parts in (True, False) if is_plain else (False,):
        (split.divide if by_parts else split.divide_as_one)(layer)
        try:
            divided, is_pure = _divided(split, layer, sample, run)
        except Exception as error:
            said = error_text(error)
        else:
            if (is_pure or not by_parts) and all(_equal(a, b, tolerance) for a, b in zip(full, divided, strict=True)):
                return by_parts
        split.undo(layer)
    raise ValueError(said)


def undivided_text(index: int, layer: nn.Module, error: ValueError) -> str:
    """Return the sentence about a layer for which `choose_division` raises `error`; `index`: its place in the model."""
    return (
        f"layer {index} ({type(layer).__name__}) cannot be divided into I and W ({error}): "
        "use a schedule that does not divide, as gpipe, 1f1b or interleaved"
    )


def _full(layer: nn.Module, sample: Tensor, run: Run) -> list[Tensor | None]:
    """Return the gradients of the input and of each weight, by one backward."""
    leaf = sample.detach().clone().requires_grad_(sample.is_floating_point())
    with _unchanged(layer):
        output = run(layer, leaf)
        if output.requires_grad:
            run_backward(get_gradient_edge(output), random_gradient(output))
        return [leaf.grad, *_taken(layer)]


def _divided(split: SplitBackward, layer: nn.Module, sample: Tensor, run: Run) -> tuple[list[Tensor | None], bool]:
    """Return the same by I and W, and whether I computed no gradient of a weight."""
    leaf = sample.detach().clone().requires_grad_(sample.is_floating_point())
    deferred, of_input = Deferred(), None
    with _unchanged(layer):
        split.deferred = deferred
        try:
            output = run(layer, leaf)
            split.deferred = None
            if output.requires_grad:
                of_input = deferred.backward(get_gradient_edge(output), random_gradient(output), leaf, split)
            is_pure = not deferred.read_elsewhere
            deferred.run()
        finally:
            split.deferred = None
            of_weights = _taken(layer)
    return [of_input, *of_weights], is_pure


def random_gradient(output: Tensor) -> Tensor:
    """Return random numbers as the gradient of an output, the same in each call."""
    return torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)


def _taken(layer: nn.Module) -> list[Tensor | None]:
    """Return the gradients of a layer's weights, and take them away."""
    weights = list(layer.parameters())
    gradients = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    return [gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient for gradient in gradients]


def _equal(a: Tensor | None, b: Tensor | None, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    scale = float(a.nan_to_num().abs().max()) if a.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)


@contextmanager
def _unchanged(layer: nn.Module) -> Iterator[None]:
    """Let the weights, the buffers and the plain attributes of a layer be at the end what they were."""
    modules = list(layer.modules())
    buffers = [(module, name, b) for module in modules for name, b in module.named_buffers("", False)]
    tensors = [(tensor, tensor.detach().clone()) for tensor in (*layer.parameters(), *layer.buffers())]
    attributes = [(module, _attributes(module)) for module in modules]
    try:
        yield
    finally:
        for module, before in attributes:
            for name in _attributes(module).keys() - before.keys():
                delattr(module, name)
            vars(module).update(before)
        for module, name, buffer in buffers:
            setattr(module, name, buffer)
        with torch.no_grad():
            for tensor, numbers in tensors:
                tensor.copy_(numbers)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "forward"}
