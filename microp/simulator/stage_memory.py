"""The memory of a stage, from that of its layers; `rank_memory` adds up what a rank holds of its stages.

::

    layer               0        1        2                     one stage of three layers
    activation       [x a b]  [b c d]  [d e f]      kept by F: x a b c d e f
    shared               b        d                 kept by two neighbours, counted once

    2 segments, a = activation, b = boundary            h = bytes from I to W

    action       F0      F1      I0            W0     ...
    held after   2b      4b    2b + h        2b + g      a microbatch: 2b from F to I, h from I to W
    peak during  2b+t    4b+t  4b + a/2 + u  2b + h + v  in an I one segment is recomputed: a/2

g = gradients of the weights, held from the first one on; t, u and v = extra bytes while an F, an I and a W run. Without
recomputation an F holds `a`. Without g, t, u and v, a rank that holds n microbatches needs n a without recomputation,
and n s b + a/s with s segments (Chen et al., arXiv 1604.06174; in a pipeline every microbatch in flight keeps its s
segment inputs).

In a backward the last layer comes first, and what it kept is free when the layer before it begins: the peak is the
largest sum of a layer's own need and of what is still held.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from microp.schedule import spread
from microp.settings import HOLDS_NOTHING, Checkpointing, Holds

MOST_ROWS = 1024  # of a measurement: memory is linear in them, and the logits of more could fill the memory
WORK = 1_000_000_000  # multiplications per microbatch; a larger microbatch is measured with fewer rows


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
        weights: the bytes of its weights that are trained.
        activation: kept by F for B without recomputation, with the tensor that enters if it is kept.
        boundary: the tensor that enters; 0 for the model's first layer, whose input is the batch.
        shared: the part of `activation` that the next layer keeps too: its input.
        pending: kept by B for W, if the backward is divided.
        in_backward: needed while B runs, in addition to `activation`: also the gradient of the layer's output.
        in_weight: needed while W runs, in addition to `pending` and `products`.
        in_forward: needed while F runs that keeps nothing, in addition to the tensor that enters.
        in_full: as `in_backward`, while an undivided B runs; measured where the schedule divides others.
        products: made by W and held until the W of the whole stage ends: small gradients, which are added in one call.
        frozen: the bytes of its weights that are not trained.
        past: kept by F for the later slices and for B even if all else is recomputed: keys and values.
        returned: what a slice's B changes of the gradients that wait for the B of the slices before it.
        later: the memory of the slices after the first, which this one is of; empty without slices.
        common: bytes that all layers of a rank have in common, in one place.
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
    frozen: Size = Size()
    past: Size = Size()
    returned: Size = Size()
    later: tuple[LayerMemory, ...] = ()
    common: int = 0

    def at(self, rows: float) -> LayerBytes:
        """Return the bytes for a microbatch of `rows` rows."""
        return LayerBytes(self.weights, *(size.at(rows) for size in self[1:-2]))


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
    frozen: float
    past: float
    returned: float


NOTHING = LayerBytes(*[0.0] * len(LayerBytes._fields))


class StageBytes(NamedTuple):
    """The bytes of a stage and a microbatch, by what holds them.

    Attributes:
        kept: from F to B: the inputs of the segments that are recomputed, or everything if none is.
        whole: the same of a microbatch that is spared the recomputation of others.
        pending: from B to W, if there is a W.
        gradients: those of the stage's weights, which its first full backward or W allocates.
        rebuilt: while a B runs: one recomputed segment.
        in_forward: while an F runs, in addition to what it keeps.
        in_backward: while a B runs, in addition to what F kept and a recomputed segment.
        in_full: the same while an undivided B runs, in a schedule that divides others.
        in_weight: while a W runs.
        coming_input, coming_gradient: the places of tensors that are received.
        sent_output, sent_gradient: tensors that were sent, until it is known that their receivers have used them.
        own_send: in addition while a B runs, if its own forward's output is still being sent.
        first_backward: in addition while the first undivided backward runs, which makes the gradients of the weights.
        first_weight: the same of the first W.
        returned: what a slice's B changes of the gradients that wait for the slices before it.
    """

    kept: float = 0
    whole: float = 0
    pending: float = 0
    gradients: float = 0
    rebuilt: float = 0
    in_forward: float = 0
    in_backward: float = 0
    in_full: float = 0
    in_weight: float = 0
    coming_input: float = 0
    coming_gradient: float = 0
    sent_output: float = 0
    sent_gradient: float = 0
    own_send: float = 0
    first_backward: float = 0
    first_weight: float = 0
    returned: float = 0


def stage_bytes(
    layers: Sequence[LayerMemory],
    rows: float,
    checkpointing: Checkpointing,
    leaving: float = 0,
    holds: Holds = HOLDS_NOTHING,
    split: bool = False,
) -> StageBytes:
    """Return the memory of a microbatch of `rows` rows on a stage.

    Args:
        layers: those of the stage, in order, measured with the schedule's kind of backward.
        leaving: the bytes of the stage's output, and of the gradient that comes back; 0 if that is the loss.
        split: whether the schedule divides backwards.
    """
    count = min(checkpointing.segments, len(layers))
    sizes = spread(len(layers), max(1, count))
    stage = [layer.at(rows) for layer in layers]
    segments = [stage[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]
    activation = _activation(stage)
    past = sum(layer.past for layer in stage)
    rebuilt = (activation - past) / count if count else 0.0  # what was kept of a slice is free when it is there again
    shared = 0.0 if count else stage[-1].shared  # the part of the output that the last layer keeps too
    stays = leaving if holds.mailboxes else 0.0
    backward = partial(_backward, segments, count, stays, split and not leaving)
    sending = shared if holds.messages else 0.0
    return StageBytes(
        kept=sum(segment[0].boundary for segment in segments) + past if count else activation,
        whole=activation,
        pending=sum(layer.pending for layer in stage),
        gradients=sum(layer.weights for layer in stage),
        rebuilt=rebuilt,
        in_forward=_in_forward(segments) if count else 0.0,
        in_backward=max(0.0, backward(False) - rebuilt),
        in_full=max(0.0, backward(True) - rebuilt),
        in_weight=_in_weight(stage),
        coming_input=stage[0].boundary,
        coming_gradient=leaving,
        sent_output=max(0.0, leaving - shared) if holds.messages else 0.0,
        sent_gradient=stage[0].boundary if holds.messages else 0.0,
        own_send=backward(False, sent=sending) - backward(False),
        first_backward=backward(split, sent=sending, is_first=True) - backward(split),
        first_weight=_in_weight(stage, is_first=True) - _in_weight(stage),
        returned=sum(layer.returned for layer in stage),
    )


def weight_bytes(layers: Sequence[LayerMemory], sizes: Sequence[int]) -> list[int]:
    """Return the bytes of each stage's weights that are trained; `layers` are of one copy of the model."""
    ends, layers = list(accumulate(sizes)), [*layers] * (sum(sizes) // len(layers))
    return [sum(layer.weights for layer in layers[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _activation(layers: Sequence[LayerBytes]) -> float:
    """Return the bytes that the forward of consecutive layers keeps; what two layers keep counts once."""
    return sum(layer.activation for layer in layers) - sum(layer.shared for layer in layers[:-1])


def _in_weight(layers: Sequence[LayerBytes], is_first: bool = False) -> float:
    """Return the bytes needed during the W of consecutive layers, in addition to what their B kept."""
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
    segments: Sequence[Sequence[LayerBytes]],
    recomputed: int,
    stays: float,
    from_loss: bool,
    whole: bool,
    sent: float = 0,
    is_first: bool = False,
) -> float:
    """Return the bytes needed during the backward of a stage, in addition to what its forward kept.

    Every layer was measured with the gradient of its output, which lived until its backward had ended. Inside a segment
    that gradient is free earlier, and the one of the segment's output lives instead, which is about as large.

    Args:
        segments: the layers of each segment.
        recomputed: the number of segments of which the forward has kept only the input; 0: it kept everything.
        stays: the bytes of the output's gradient if it keeps its memory when its segment's backward has ended.
        from_loss: whether it is divided, and of the stage with the loss: then no gradient of an output lives beside
            that of a layer, and what two layers share counts once, though the later one's W keeps it too.
        whole: whether it is undivided although others are divided.
        sent: the bytes of the output that its send still holds when its own backward begins.
        is_first: whether it makes the gradients of the weights, which stay.
    """
    peak, freed = 0.0, 0.0
    for segment in reversed(segments):
        if recomputed:
            freed -= _activation(segment) - segment[0].boundary - sum(layer.past for layer in segment)
        for index in reversed(range(len(segment))):
            layer, kept_by = segment[index], segment[index - 1].shared if index else 0
            is_inner = from_loss and segment is segments[-1] and index + 1 < len(segment)
            twice = min(layer.shared, segment[index + 1].pending) if is_inner else 0
            peak = max(peak, (layer.in_full if whole else layer.in_backward) - freed - twice)
            freed += layer.activation - kept_by - (0 if whole else layer.pending) - layer.returned
            freed -= sent + (layer.weights if is_first else 0)
            sent = 0
        if segment is segments[-1]:
            freed -= stays
    return peak
