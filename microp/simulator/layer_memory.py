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
        in_weight: needed while W runs, in addition to `pending` and `products`.
        in_forward: needed while F runs that keeps nothing, in addition to the tensor that enters.
        in_full: as `in_backward`, while an undivided B runs; measured where the schedule divides others.
        products: made by W and held until the W of the whole stage ends: small gradients, which are added in one call.
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

    def at(self, rows: float) -> LayerBytes:
        """Return the bytes for a microbatch of `rows` rows."""
        return LayerBytes(self.weights, *(size.at(rows) for size in self[1:]))


class LayerBytes(NamedTuple):
    """A `LayerMemory` at a number of rows."""

    weights: float
    activation: float
    boundary: float
    shared: float
    pending: float
    in_backward: float
    in_weight: float
    products: float
    in_forward: float
    in_full: float


class Moved(NamedTuple):
    """What comes to and goes from a stage while its backward runs.

    Attributes:
        gradient: the bytes of the gradient of its output; 0 if that is the loss.
        stays: whether the gradient keeps its memory when its segment's backward has ended, as in a mailbox.
        sent: the bytes of the output that its send still holds when its own backward begins.
    """

    gradient: float = 0
    stays: bool = False
    sent: float = 0


def compose_memory(
    layers: Sequence[LayerMemory],
    rows: float,
    checkpointing: Checkpointing,
    chunks: int,
    moved: Moved = Moved(),  # noqa: B008 (it cannot be changed)
) -> StageMemory:
    """Return the memory of a microbatch of `rows` rows on a stage.

    Args:
        layers: those of the stage, in order, measured with the schedule's kind of backward.
        rows: the rows of a microbatch.
        checkpointing: what is recomputed.
        chunks: the number of microbatches.
        moved: what comes and goes.
    """
    cut, count = _cut(layers, rows, checkpointing)
    stage = [layer for segment in cut for layer in segment]
    activation = _activation(stage)
    rebuilt = activation / count if count else 0
    divided, full = (max(0, _backward(cut, count, moved, whole) - rebuilt) for whole in (False, True))
    return StageMemory(
        activation=(activation,),
        boundary=(sum(segment[0].boundary for segment in cut) / count if count else 0,),
        pending=(sum(layer.pending for layer in stage),),
        in_backward=(divided,),
        in_weight=(_in_weight(stage),),
        gradients=tuple(weight_bytes(layers, (len(layers),))),
        segments=(count,) if count else (),
        spared=checkpointing.spared(chunks),
        in_forward=(_in_forward(cut) if count else 0,),
        in_full=(full,),
    )


class Extra(NamedTuple):
    """Bytes that some actions of a stage need in addition to what all actions of their kind need.

    Attributes:
        own_send: a backward, if its own forward's output is still being sent.
        first_backward: the first undivided backward, which makes the gradients of the weights.
        first_weight: the first W, the same.
    """

    own_send: float
    first_backward: float
    first_weight: float


def extra_memory(
    layers: Sequence[LayerMemory], rows: float, checkpointing: Checkpointing, moved: Moved, split: bool
) -> Extra:
    """Return what some actions of a stage need in addition.

    Args:
        layers: as in `compose_memory`, also the next two.
        rows: the rows of a microbatch.
        checkpointing: what is recomputed.
        moved: what comes and goes; its `sent` counts only here.
        split: whether the schedule divides backwards.
    """
    cut, count = _cut(layers, rows, checkpointing)
    stage = [layer for segment in cut for layer in segment]
    usual, sending = moved._replace(sent=0), moved
    return Extra(
        _backward(cut, count, sending, False) - _backward(cut, count, usual, False),
        _backward(cut, count, sending, split, is_first=True) - _backward(cut, count, usual, split),
        _in_weight(stage, is_first=True) - _in_weight(stage),
    )


def weight_bytes(layers: Sequence[LayerMemory], sizes: Sequence[int]) -> list[int]:
    """Return the bytes of each stage's weights."""
    ends = list(accumulate(sizes))
    return [sum(layer.weights for layer in layers[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _cut(
    layers: Sequence[LayerMemory], rows: float, checkpointing: Checkpointing
) -> tuple[list[Sequence[LayerBytes]], int]:
    """Return the layers of each segment of a stage, and the number of segments that are recomputed."""
    count = min(checkpointing.segments, len(layers))
    at_rows = [layer.at(rows) for layer in layers]
    sizes = spread(len(layers), max(1, count))
    return [at_rows[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)], count


def _activation(layers: Sequence[LayerBytes]) -> float:
    """Return the bytes that the forward of consecutive layers keeps; what two layers keep counts once."""
    return sum(layer.activation for layer in layers) - sum(layer.shared for layer in layers[:-1])


def _in_weight(layers: Sequence[LayerBytes], is_first: bool = False) -> float:
    """Return the bytes needed during the W of consecutive layers, in addition to what their B kept.

    Args:
        layers: the layers, the last of which comes first.
        is_first: whether the gradients stay.
    """
    peak = made = 0.0
    for layer in reversed(layers):
        peak = max(peak, layer.in_weight + made)
        made += layer.weights - layer.products if is_first else 0
    return sum(layer.products for layer in layers) + peak


def _in_forward(segments: Sequence[Sequence[LayerBytes]]) -> float:
    """Return the bytes needed during a forward that keeps the inputs of segments, in addition to these."""
    layers = [(layer, index) for segment in segments for index, layer in enumerate(segment)]
    return max(layer.in_forward + (layer.boundary if index else 0) for layer, index in layers)


def _backward(
    segments: Sequence[Sequence[LayerBytes]], recomputed: int, moved: Moved, whole: bool, is_first: bool = False
) -> float:
    """Return the bytes needed during the backward of a stage, in addition to what its forward kept.

    Every layer was measured with the gradient of its output, which lived until its backward had ended. Inside a segment
    that gradient is free earlier, and the one of the segment's output lives instead, which is about as large.

    Args:
        segments: the layers of each segment.
        recomputed: the number of segments of which the forward has kept only the input; 0: it kept everything.
        moved: what comes and goes.
        whole: whether it is undivided although others are divided.
        is_first: whether it makes the gradients of the weights, which stay.
    """
    peak, freed, stays = 0.0, 0.0, moved.sent
    for segment in reversed(segments):
        if recomputed:
            freed -= _activation(segment) - segment[0].boundary
        for index in reversed(range(len(segment))):
            layer, kept_by = segment[index], segment[index - 1].shared if index else 0
            peak = max(peak, (layer.in_full if whole else layer.in_backward) - freed)
            freed += layer.activation - kept_by - (0 if whole else layer.pending)
            freed -= stays + (layer.weights if is_first else 0)
            stays = 0
        if segment is segments[-1] and moved.stays:
            freed -= moved.gradient
    return peak
