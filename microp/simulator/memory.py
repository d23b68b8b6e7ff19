"""Predicts the activation bytes that each rank holds, from simulated or measured spans.

::

    2 segments, a = activation, b = boundary            h = bytes from B to W

    action       F0      F1      B0            W0     ...
    held after   2b      4b    2b + h        2b + g      a microbatch: 2b from F to B, h from B to W
    peak during  2b      4b    4b + a/2 + u  2b + h + v  in a B one segment is recomputed: a/2

g = gradients of the weights, held from the first one on; u and v = extra bytes while a B and a W
run. Without recomputation an F holds `a`. Without g, u and v, a rank that holds n microbatches
needs n a without recomputation, and n s b + a/s with s segments (Chen et al., arXiv 1604.06174;
in a pipeline every microbatch in flight keeps its s segment inputs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from microp.simulator.costs import at, check_spared, check_stages, ratio
from microp.trace import B, Column, F, Span, Spans, W, as_spans, column_type


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one microbatch, one value per stage; an empty tuple means 0 on every stage.

    Attributes:
        activation: kept by F for B without recomputation.
        boundary: the tensor that enters a segment.
        pending: kept by B for W, if there is a W.
        in_backward: needed while a B runs, in addition to what F kept and a recomputed segment.
        in_weight: needed while a W runs.
        gradients: the gradients of the stage's weights, which its first full backward or W allocates.
        segments: the number of segments of the stage, all recomputed; 0 means no recomputation.
        spared: the microbatches that are not recomputed.

    Raises:
        ValueError: lists differ in length, or a value is negative; the message names the key.
    """

    activation: tuple[Any, ...]
    boundary: tuple[Any, ...] = ()
    pending: tuple[Any, ...] = ()
    in_backward: tuple[Any, ...] = ()
    in_weight: tuple[Any, ...] = ()
    gradients: tuple[Any, ...] = ()
    segments: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.check(len(self.activation))
        check_spared("stage_memory", self.spared)

    def check(self, stages: int) -> None:
        """Raise ValueError unless there is a value for each of `stages` stages."""
        optional = ("boundary", "pending", "in_backward", "in_weight", "gradients", "segments")
        given = {name: values for name in optional if (values := getattr(self, name))}
        check_stages("stage_memory", stages, activation=self.activation, **given)

    def kept(self, stage: int) -> Any:
        """Return the bytes held from F to B: the inputs of the segments, or the activation if there are none."""
        segments = at(self.segments, stage)
        return segments * at(self.boundary, stage) if segments else self.activation[stage]

    def rebuilt(self, stage: int) -> Any:
        """Return the bytes held in addition during B: the activations of one recomputed segment."""
        segments = at(self.segments, stage)
        return ratio(self.activation[stage], segments) if segments else 0


def activation_peak(spans: Iterable[Span], stage_memory: StageMemory) -> dict[int, Any]:
    """Return rank -> the most bytes that it holds at once.

    Raises:
        ValueError: `stage_memory` is for another number of stages than the spans.
    """
    spans = as_spans(spans)
    stages = int(spans.stage.max()) + 1
    stage_memory.check(stages)
    memories = stage_memory, replace(stage_memory, segments=())  # for recomputed and for spared microbatches
    stage = spans.stage + stages * np.isin(spans.microbatch, stage_memory.spared)
    is_split = spans.is_split()
    kept = _column([each.kept(s) for each in memories for s in range(stages)], len(spans))[stage]
    rebuilt = _column([each.rebuilt(s) for each in memories for s in range(stages)], len(spans))[stage]
    pending, gradients, in_backward, in_weight = (
        _column([at(values, s) for s in range(stages)], len(spans))[spans.stage]
        for values in (stage_memory.pending, stage_memory.gradients, stage_memory.in_backward, stage_memory.in_weight)
    )
    backward = np.where(is_split, pending, 0) - kept
    changes = np.select([spans.op == F, spans.op == B, spans.op == W], [kept, backward, -pending])
    changes = changes + np.where(_makes_gradients_first(spans, is_split), gradients, 0)
    held = spans.running(changes)
    inside = held - changes + np.where(spans.op == B, rebuilt + in_backward, in_weight)
    return spans.per_rank(np.where(spans.op == F, held, np.maximum(held, inside)), np.maximum)


def _makes_gradients_first(spans: Spans, is_split: Column) -> Column:
    """Return, for each span, whether it is its stage's first W or full backward, which allocates the gradients."""
    makes = np.flatnonzero(np.where(is_split, spans.op == W, spans.op == B))
    _, first = np.unique(spans.stage[makes], return_index=True)
    found = np.zeros(len(spans), dtype=bool)
    found[makes[first]] = True
    return found


def _column(values: list[Any], count: int) -> Column:
    return np.array(values, column_type(values, bound=count * max(values)))
