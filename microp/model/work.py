"""Counts what the layers of a user's own model compute and read, without numbers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from microp.settings import LayerWork


def layer_work(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> tuple[LayerWork, ...]:
    """Return the operations of each layer's forward per row, and the weights that it reads: all but embeddings.

    Nothing is returned if torch's counter cannot run a layer, for example one that computes gradients in its forward.

    Args:
        inputs: what enters each of them; the first size is the rows.
    """
    try:
        return tuple((_flops(layer, x) / len(x), _read(layer)) for layer, x in zip(layers, inputs, strict=True))
    except RuntimeError:
        return ()


def _read(layer: nn.Module) -> int:
    modules = [module for module in layer.modules() if not isinstance(module, nn.Embedding)]
    weights = {id(each): each.numel() for module in modules for each in module.parameters(recurse=False)}
    return sum(weights.values())


def _flops(layer: nn.Module, entered: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        layer(entered.detach())
    return counter.get_total_flops()
