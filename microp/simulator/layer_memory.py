"""Composes the memory of stages from the memory of their layers.

::

    layer               0        1        2                     one stage of three layers
    activation       [x a b]  [b c d]  [d e f]      kept by F: x a b c d e f
    shared               b        d                 kept by two neighbours, counted once

In a backward the last layer comes first, and what it kept is free when the layer before it begins:
the peak is the largest sum of a layer's own need and of what is still held.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from microp.schedule import spread
from microp.settings import Checkpointing
from microp.simulator.memory import StageMemory

MOST_ROWS = 1024  # of a measurement: memory is linear in them, and the logits of more could fill the memory


class Size(NamedTuple):
    """Bytes as a linear function of a microbatch's rows."""

    fixed: float = 0
    per_row: float = 0

    def at(self, rows: float) -> float:
        """Return the bytes for a microbatch of `rows` rows."""
        return self.fixed + self.per_row * rows


class LayerMemory(NamedTuple):
    """The memory of one layer and one microbatch, as if the layer were a stage of its own.

    Attributes:
        weights: the bytes of its weights.
        activation: kept by F for B without recomputation, with the tensor that enters if it is kept.
        boundary: the tensor that enters; 0 for the model's first layer, whose input is the batch.
        shared: the part of `activation` that the next layer keeps too: its input.
        pending: kept by B for W, if the backward is divided.
        in_backward: needed while B runs, in addition to `activation`: also the gradient of the layer's output.
        in_weight: needed while W runs, in addition to `pending`.
        in_forward: needed while F runs that keeps nothing, in addition to the tensor that enters.
        in_full: as `in_backward`, while an undivided B runs; measured where the schedule divides others.
        products: the part of `in_weight` that is held until the W of the whole stage ends: small gradients, which are
            added in one call.
    """

    weights: int
    activation: Size = Size()
    boundary: Size = Size()
    shared: Size = Size()
    pending: Size = Size()
    in_backward: Size = Size()
    in_weight: Size = Size()
    products: Size = Size()
    in_forward: Size = Size()
    in_full: Size = Size()


class LayerBytes(NamedTuple):
    """A `LayerMemory` at a number of rows, without the weights."""

    activation: float
    boundary: float
    shared: float
    pending: float
    in_backward: float
    in_weight: float
    products: float
    in_forward: float
    in_full: float


def compose_memory(
    layers: Sequence[LayerMemory], sizes: Sequence[int], rows: float, checkpointing: Checkpointing, chunks: int
) -> StageMemory:
    """Return the memory of a microbatch of `rows` rows on each stage.

    Args:
        layers: every layer of the model, in order, measured with the schedule's kind of backward.
        sizes: the number of layers of each stage.
        rows: the rows of a microbatch.
        checkpointing: what is recomputed.
        chunks: the number of microbatches.
    """
    assert sum(sizes) == len(layers)
    at_rows = [LayerBytes(*(size.at(rows) for size in layer[1:])) for layer in layers]
    ends = list(accumulate(sizes))
    stages = [at_rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    segments = [min(checkpointing.segments, size) for size in sizes]
    cuts = [_cut(stage, max(1, count)) for stage, count in zip(stages, segments, strict=True)]
    activation = [_activation(stage) for stage in stages]
    inputs = [sum(segment[0].boundary for segment in cut) for cut in cuts]
    rebuilt = [kept / count if count else 0 for kept, count in zip(activation, segments, strict=True)]
    divided, full = (
        [
            max(0, (_peak_recomputed(cut, whole) if count else _peak(stage, whole)) - again)
            for stage, cut, count, again in zip(stages, cuts, segments, rebuilt, strict=True)
        ]
        for whole in (False, True)
    )
    return StageMemory(
        activation=tuple(activation),
        boundary=tuple(total / count if count else 0 for total, count in zip(inputs, segments, strict=True)),
        pending=tuple(sum(layer.pending for layer in stage) for stage in stages),
        in_backward=tuple(divided),
        in_weight=tuple(map(_in_weight, stages)),
        gradients=tuple(weight_bytes(layers, sizes)),
        segments=tuple(segments) if checkpointing.segments else (),
        spared=checkpointing.spared(chunks),
        in_forward=tuple(_in_forward(cut) if count else 0 for cut, count in zip(cuts, segments, strict=True)),
        in_full=tuple(full),
    )


def weight_bytes(layers: Sequence[LayerMemory], sizes: Sequence[int]) -> list[int]:
    """Return the bytes of each stage's weights."""
    ends = list(accumulate(sizes))
    return [sum(layer.weights for layer in layers[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _cut(layers: Sequence[LayerBytes], segments: int) -> list[Sequence[LayerBytes]]:
    sizes = spread(len(layers), segments)
    return [layers[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]


def _activation(layers: Sequence[LayerBytes]) -> float:
    """Return the bytes that the forward of consecutive layers keeps; what two layers keep counts once."""
    return sum(layer.activation for layer in layers) - sum(layer.shared for layer in layers[:-1])


def _in_weight(layers: Sequence[LayerBytes]) -> float:
    """Return the bytes needed during the W of consecutive layers, in addition to what their B kept."""
    return sum(layer.products for layer in layers) + max(layer.in_weight - layer.products for layer in layers)


def _in_forward(segments: Sequence[Sequence[LayerBytes]]) -> float:
    """Return the bytes needed during a forward that keeps the inputs of segments, in addition to these."""
    layers = [(layer, index) for segment in segments for index, layer in enumerate(segment)]
    return max(layer.in_forward + (layer.boundary if index else 0) for layer, index in layers)


def _peak(layers: Sequence[LayerBytes], whole: bool) -> float:
    """Return the bytes needed during the backward of consecutive layers, in addition to what their forward kept.

    Args:
        layers: the layers.
        whole: whether it is undivided although others are divided.
    """
    peak = freed = 0.0
    for index in reversed(range(len(layers))):
        layer = layers[index]
        peak = max(peak, (layer.in_full if whole else layer.in_backward) - freed)
        shared = layers[index - 1].shared if index else 0
        freed += layer.activation - shared - (0 if whole else layer.pending)
    return peak


def _peak_recomputed(segments: Sequence[Sequence[LayerBytes]], whole: bool) -> float:
    """Return the bytes needed during the backward of recomputed segments, in addition to their inputs."""
    peak = freed = 0.0
    for segment in reversed(segments):
        rebuilt = _activation(segment) - segment[0].boundary
        peak = max(peak, rebuilt + _peak(segment, whole) - freed)
        freed += segment[0].boundary - (0 if whole else sum(layer.pending for layer in segment))
    return peak
