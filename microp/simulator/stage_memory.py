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
from math import inf
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
    """The memory of one layer and one microbatch, as if the layer were a stage of its own."""

    weights: int  # the bytes of its weights that are trained
    activation: Size = Size()  # kept by F for B without recomputation, with the tensor that enters if it is kept
    boundary: Size = Size()  # the tensor that enters; 0 for the model's first layer, whose input is the batch
    shared: Size = Size()  # the part of `activation` that the next layer keeps too: its input
    pending: Size = Size()  # kept by B for W, if the backward is divided
    # needed while B runs, in addition to `activation`: also the gradient of the layer's output
    in_backward: Size = Size()
    in_weight: Size = Size()  # needed while W runs for Linears, in addition to `pending` and `products`
    # made by W and held until all Linears of the stage have run: small gradients, which are added in one call
    products: Size = Size()
    in_graphs: Size = Size()  # needed while W runs, after all Linears', in addition to `pending`
    in_first_graphs: Size = Size()  # the same of the first W, with the gradients that it makes
    linear: Size = Size()  # the gradients of Linears, which the first W of a stage makes before all others
    freed: Size = Size()  # the part of `pending` that W frees as it goes, after all Linears'
    in_forward: Size = Size()  # needed while F runs that keeps nothing, in addition to the tensor that enters
    in_full: Size = Size()  # as `in_backward`, while an undivided B runs; measured where the schedule divides others
    frozen: Size = Size()  # the bytes of its weights that are not trained, and of its buffers
    past: Size = Size()  # kept by F for the later slices and for B even if all else is recomputed: keys and values
    returned: Size = Size()  # what a slice's B changes of the gradients that wait for the B of the slices before it
    input_kept: Size = Size()  # the part of `activation` that is the tensor that enters
    input_pending: Size = Size()  # the same of `pending`
    gradient_pending: Size = Size()  # the part of `pending` that is the gradient of the layer's output
    # needed while F runs, in addition to what it keeps for B: also the output, if it is not kept
    in_taped: Size = Size()
    input_unsaved: Size = Size()  # the part of `input_kept` that no operation keeps, only the stage, as its input
    pending_unsaved: Size = Size()  # the same of `input_pending`
    # the memory of the slices after the first, which this one is of; empty without slices
    later: tuple[LayerMemory, ...] = ()
    common: int = 0  # bytes that all layers of a rank have in common, in one place
    is_idle: bool = False  # whether nothing up to it is trained: it keeps nothing, and has no backward

    def at(self, rows: float) -> LayerBytes:
        """Return the bytes for a microbatch of `rows` rows."""
        return LayerBytes._make([self.weights, *(size.at(rows) for size in self[1:-3]), self.is_idle])


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
    in_graphs: float
    in_first_graphs: float
    linear: float
    freed: float
    in_forward: float
    in_full: float
    frozen: float
    past: float
    returned: float
    input_kept: float
    input_pending: float
    gradient_pending: float
    in_taped: float
    input_unsaved: float
    pending_unsaved: float
    is_idle: bool


NOTHING = LayerMemory(0).at(0)


class StageBytes(NamedTuple):
    """The bytes of a stage and a microbatch, by what holds them.

    The tensors between stages count apart: they lie in the memory of a transport, or of the stage that made them.
    """

    kept: float = 0  # from F to B if it is recomputed: the inputs of its segments after the first
    whole: float = 0  # from F to B if it is not
    pending: float = 0  # from I to W
    gradients: float = 0  # those of the stage's weights, which its first full backward or W allocates
    rebuilt: float = 0  # while a B runs: one recomputed segment
    in_forward: float = 0  # while an F runs, in addition to what it keeps
    in_backward: float = 0  # while a B runs, in addition to what F kept and a recomputed segment
    in_full: float = 0  # the same while an undivided B runs, in a schedule that divides others
    taped_forward: float = 0  # these three of a microbatch that is not recomputed
    taped_backward: float = 0
    taped_full: float = 0
    in_weight: float = 0  # while a W runs
    input: float = 0  # the tensor that enters
    input_kept: float = 0  # the part of it that F keeps for B if the microbatch is recomputed
    input_whole: float = 0  # the same if it is not
    input_pending: float = 0  # the part of it that I keeps for W
    gradient: float = 0  # the gradient of the output, which is as large as the output
    gradient_pending: float = 0  # the part of it that I keeps for W
    sent_output: float = 0  # the output if the microbatch is recomputed
    sent_whole: float = 0  # the same if it is not: without the part that F keeps
    sent_gradient: float = 0  # the gradient of the tensor that enters
    both: float = 0  # the part of the output that F keeps, and the next stage for its B too
    both_pending: float = 0  # the same of the next stage's W
    # in addition while a B runs whose forward kept everything, if that one's output is still being sent
    own_send: float = 0
    own_kept: float = 0  # the same if the next stage, of the same rank, keeps that output for its W
    first_backward: float = 0  # in addition while the first undivided backward runs, which makes the weights' gradients
    first_weight: float = 0  # the same of the first W
    returned: float = 0  # what a slice's B changes of the gradients that wait for the slices before it


def stage_bytes(
    layers: Sequence[LayerMemory],
    rows: float,
    checkpointing: Checkpointing,
    after: LayerMemory | None = None,
    holds: Holds = HOLDS_NOTHING,
    split: bool = False,
) -> StageBytes:
    """Return the memory of a microbatch of `rows` rows on a stage.

    Args:
        layers: those of the stage, in order, measured with the schedule's kind of backward.
        after: the layer that the stage's output enters; None if that is the loss.
        split: whether the schedule divides backwards.
    """
    following = after.at(rows) if after else NOTHING
    leaving = following.boundary
    count = min(checkpointing.segments, len(layers))
    sizes = spread(len(layers), max(1, count))
    every = [layer.at(rows) for layer in layers]
    segments = [_joined(every[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    stage = _joined(every)
    activation = _activation(stage)
    past = sum(layer.past for layer in stage)
    rebuilt = (activation - past) / count if count else 0.0  # what was kept of a slice is free when it is there again
    first, shared = stage[0], stage[-1].shared  # the part of the output that the last layer keeps too
    backward, taped = (partial(_backward, segments, n, leaving, split and not leaving) for n in (count, 0))
    sending = shared if holds.messages else 0.0
    inputs = list(map(_entered, segments))
    return StageBytes(
        kept=sum(inputs[1:]) + past,
        whole=activation - first.input_kept,
        pending=sum(layer.pending for layer in stage) - first.input_pending - stage[-1].gradient_pending,
        gradients=sum(layer.weights for layer in stage),
        rebuilt=rebuilt,
        in_forward=_in_forward(segments),
        in_backward=max(0.0, backward(False) - rebuilt),
        in_full=max(0.0, backward(True) - rebuilt),
        taped_forward=_in_taped(stage),
        taped_backward=taped(False),
        taped_full=taped(True),
        in_weight=_in_weight(stage),
        input=first.boundary,
        input_kept=inputs[0],
        input_whole=first.input_kept,
        input_pending=first.input_pending,
        gradient=leaving,
        gradient_pending=stage[-1].gradient_pending,
        sent_output=leaving,
        sent_whole=max(0.0, leaving - shared),
        sent_gradient=first.boundary,
        both=min(shared, following.input_kept),
        both_pending=min(shared, following.input_pending),
        own_send=taped(False, sent=sending) - taped(False),
        own_kept=taped(False, sent=min(shared, following.input_pending)) - taped(False),
        first_backward=backward(split, sent=0 if count else sending, is_first=True) - backward(split),
        first_weight=_in_weight(stage, is_first=True) - _in_weight(stage),
        returned=sum(layer.returned for layer in stage),
    )


def weight_bytes(layers: Sequence[LayerMemory], sizes: Sequence[int]) -> list[int]:
    """Return the bytes of each stage's weights that are trained; `layers` are of one copy of the model."""
    ends, layers = list(accumulate(sizes)), [*layers] * (sum(sizes) // len(layers))
    return [sum(layer.weights for layer in layers[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _joined(layers: Sequence[LayerBytes]) -> list[LayerBytes]:
    """Return layers as they are in one graph, where what enters those after the first is kept only by operations."""
    saved = [layer.input_kept - layer.input_unsaved for layer in layers[1:]]
    every = [layer._replace(shared=min(layer.shared, kept)) for layer, kept in zip(layers, [*saved, inf], strict=True)]
    return every[:1] + [
        layer._replace(
            activation=layer.activation - layer.input_unsaved,
            in_taped=layer.in_taped + layer.input_unsaved,
            pending=layer.pending - layer.pending_unsaved,
        )
        for layer in every[1:]
    ]


def _entered(segment: Sequence[LayerBytes]) -> float:
    """Return the bytes of a segment's input, which its forward keeps."""
    return 0.0 if segment[-1].is_idle else segment[0].boundary


def _activation(layers: Sequence[LayerBytes]) -> float:
    """Return the bytes that the forward of consecutive layers keeps; what two layers keep counts once."""
    return sum(layer.activation for layer in layers) - sum(layer.shared for layer in layers[:-1])


def _in_weight(layers: Sequence[LayerBytes], is_first: bool = False) -> float:
    """Return the bytes needed during the W of consecutive layers, in addition to what their B kept.

    `is_first`: it makes the gradients, those of all Linears first.
    """
    # 1. all Linears
    made = sum(layer.linear for layer in layers) if is_first else 0.0
    peak = made or sum(layer.products for layer in layers) + max(layer.in_weight for layer in layers)
    # 2. the other modules, layer by layer
    for layer in reversed(layers):
        peak = max(peak, made + (layer.in_first_graphs - layer.linear if is_first else layer.in_graphs))
        made += (layer.weights - layer.linear if is_first else 0.0) - layer.freed
    return peak


def _in_forward(segments: Sequence[Sequence[LayerBytes]]) -> float:
    """Return the bytes needed during a forward that keeps the inputs of segments, in addition to these."""
    peak = later = 0.0
    for segment in reversed(segments):
        needs = [layer.in_forward + (layer.boundary if index else 0) for index, layer in enumerate(segment)]
        peak = max(peak, max(needs) - later)
        later += _entered(segment)
    return peak


def _in_taped(layers: Sequence[LayerBytes]) -> float:
    """Return the bytes needed during a forward that keeps everything for its backward, in addition to that."""
    peak = later = 0.0
    for index, layer in reversed(list(enumerate(layers))):
        need = layer.in_forward + (layer.boundary if index else 0) if layer.is_idle else layer.in_taped
        peak = max(peak, need - later)
        later += layer.activation - layer.shared
    return peak


def _backward(
    segments: Sequence[Sequence[LayerBytes]],
    recomputed: int,
    leaving: float,
    from_loss: bool,
    whole: bool,
    sent: float = 0,
    is_first: bool = False,
) -> float:
    """Return the bytes needed during the backward of a stage, in addition to what its forward kept.

    Every layer was measured with the gradient of its output, which lived until its backward had ended. Inside a segment
    that gradient is free earlier, but for what W needs of it, and the one of the segment's output lives instead, which
    is about as large. That of the stage's output lives until the whole backward has ended, and counts apart.

    Args:
        segments: the layers of each segment.
        recomputed: the number of segments of which the forward has kept only the input; 0: it kept everything.
        leaving: the bytes of the stage's output, and of the gradient that comes back; 0 if that is the loss.
        from_loss: whether it is divided, and of the stage with the loss: then no gradient of an output lives beside
            that of a layer, and what two layers share counts once, though the later one's W keeps it too.
        whole: whether it is undivided although others are divided.
        sent: the bytes of the output that its send still holds when its own backward begins.
        is_first: whether it makes the gradients of the weights, which stay.
    """
    peak, freed, after = 0.0, 0.0, segments[-1]
    for segment in reversed(segments):
        if recomputed:
            entered = 0.0 if segment[0].is_idle else segment[0].boundary  # a part of it that is still there
            freed -= _activation(segment) - entered - sum(layer.past for layer in segment)
            given = 0.0 if segment is segments[-1] else after[0].boundary  # the gradient of the segment's output
            peak, after = max(peak, 0.0 if segment[-1].is_idle else _in_taped(segment) + given - freed), segment
        for index in reversed(range(len(segment))):
            layer, kept_by = segment[index], segment[index - 1].shared if index else 0
            is_inner = from_loss and segment is segments[-1] and index + 1 < len(segment)
            apart = min(layer.shared, segment[index + 1].pending) if is_inner else 0
            if leaving and segment is segments[-1]:
                is_last = index + 1 == len(segment)
                apart = leaving if is_last else segment[index + 1].boundary - (0 if whole else layer.gradient_pending)
            peak = max(peak, (layer.in_full if whole else layer.in_backward) - freed - apart)
            pending = layer.pending - (layer.gradient_pending if layer is segments[-1][-1] else 0)
            freed += layer.activation - kept_by - (0 if whole else pending) - layer.returned
            freed -= sent + (layer.weights if is_first else 0)
            sent = 0
    return peak
