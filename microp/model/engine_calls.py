"""Calls autograd's engine without the checks of `torch.autograd.backward` and `grad`.

The checks compare the shapes of outputs and gradients as symbols, for which they import sympy (0.2 s in every process)
and take about 20 µs per call; they take as long to make the gradient of a loss, and make a new one in each call.
The engine itself compares shapes, and the sender of a tensor has done so already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward


def run_backward(root: GradientEdge, gradient: Tensor) -> None:
    """Add the gradients of everything below `root` to its leaves' `grad`, and free the graph."""
    _engine_run_backward((root,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def gradients_of(wanted: Sequence[Any], root: GradientEdge, gradient: Tensor) -> Sequence[Tensor | None]:
    """Return the gradients of `wanted`, leaves or nodes, with None for those below which `root` does not lie.

    Arguments as for `run_backward`, which also frees the graph.
    """
    found: Sequence[Tensor | None] = _engine_run_backward(
        (root,), (gradient,), False, False, tuple(wanted), allow_unreachable=True, accumulate_grad=False
    )
    return found
