"""Measures the memory of a model's layers, once for equal arguments."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from microp.settings import ModelSettings
from microp.simulator import MOST_ROWS, LayerMemory


def layer_memory(model: ModelSettings, rows: float, split: bool) -> tuple[LayerMemory, ...]:
    """Return the memory of every layer.

    Args:
        model: the model.
        rows: the rows of a microbatch.
        split: whether the backward is divided into B and W.

    Raises:
        ValueError: the model is too large to be built and measured, or a layer fails.
    """
    return _measured(_Key(repr(model), min(rows, MOST_ROWS), split, model))


class _Key(NamedTuple):
    """What the measurement of a model's layers depends on; the settings themselves cannot be hashed."""

    text: str
    rows: float
    split: bool
    model: ModelSettings

    def __hash__(self) -> int:
        return hash(self[:3])


@cache
def _measured(key: _Key) -> tuple[LayerMemory, ...]:
    from microp.device import probe_layers  # torch, which nothing else here needs

    return tuple(probe_layers(key.model, key.rows, key.split))
