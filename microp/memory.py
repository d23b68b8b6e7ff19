"""What a rank holds: activation bytes predicted from spans, which may be simulated or measured.

::

    2 segments, a = activation, b = boundary            h = bytes from B to W

    action       F0      F1      B0            W0     ...
    held after   2b      4b    2b + h        2b + g      one microbatch: from F to B, and from B to W
    at most      2b      4b    4b + a/2 + u  2b + h + v  inside a B one segment is whole again

g = gradients of the weights, from the first time on that they are made; u and v = what a B and a W
need while they run. Without recomputation an F holds `a`. Without g, u and v the law of a rank
that holds n microbatches follows: n a without recomputation, n g b + a/g with g segments
(Chen et al., arXiv 1604.06174; in a pipeline every microbatch in flight keeps its g inputs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from microp.costs import at, check_spared, check_stages, ratio
from microp.trace import B, Column, F, Span, Spans, W, column_type, columns


@dataclass(frozen=True)
class Footprint:
    """Bytes of one microbatch, a value a stage; an empty tuple means 0 on every stage.

    Attributes:
        activation: what F keeps for B where nothing is recomputed.
        boundary: the tensor that enters a segment.
        pending: what B keeps for W, where there is a W.
        in_backward: what a B needs while it runs, beside what it finds and a recomputed segment.
        in_weight: what a W needs while it runs.
        gradients: of the stage's weights; the stage's first full backward or W leaves them.
        segments: into how many segments the stage is cut, all of them recomputed; 0: none is.
        spared: the microbatches that are not recomputed.

    Raises:
        ValueError: lists that differ in length, or a negative value; each names the key.
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
        check_spared("footprint", self.spared)

    def check(self, stages: int) -> None:
        """Raise ValueError unless this is the footprint of `stages` stages."""
        optional = ("boundary", "pending", "in_backward", "in_weight", "gradients", "segments")
        given = {name: values for name in optional if (values := getattr(self, name))}
        check_stages("footprint", stages, activation=self.activation, **given)

    def kept(self, stage: int) -> Any:
        """Held from F to B, of a microbatch that is recomputed if the stage is."""
        segments = at(self.segments, stage)
        return segments * at(self.boundary, stage) if segments else self.activation[stage]

    def rebuilt(self, stage: int) -> Any:
        """Held beside that during B: the activations of one segment."""
        segments = at(self.segments, stage)
        return ratio(self.activation[stage], segments) if segments else 0


def activation_peak(spans: Iterable[Span], footprint: Footprint) -> dict[int, Any]:
    """rank -> the most bytes it holds at once.

    Raises:
        ValueError: the footprint is of another number of stages than the spans.
    """
    spans = columns(spans)
    stages = int(spans.stage.max()) + 1
    footprint.check(stages)
    footprints = footprint, replace(footprint, segments=())  # of the recomputed, and of the spared
    stage = spans.stage + stages * np.isin(spans.microbatch, footprint.spared)
    is_split = spans.is_split()
    kept = _column([each.kept(s) for each in footprints for s in range(stages)], len(spans))[stage]
    rebuilt = _column([each.rebuilt(s) for each in footprints for s in range(stages)], len(spans))[stage]
    pending, gradients, in_backward, in_weight = (
        _column([at(values, s) for s in range(stages)], len(spans))[spans.stage]
        for values in (footprint.pending, footprint.gradients, footprint.in_backward, footprint.in_weight)
    )
    backward = np.where(is_split, pending, 0) - kept
    changes = np.select([spans.op == F, spans.op == B, spans.op == W], [kept, backward, -pending])
    changes = changes + np.where(_makes_gradients_first(spans, is_split), gradients, 0)
    held = spans.running(changes)
    inside = held - changes + np.where(spans.op == B, rebuilt + in_backward, in_weight)
    return spans.per_rank(np.where(spans.op == F, held, np.maximum(held, inside)), np.maximum)


def _makes_gradients_first(spans: Spans, is_split: Column) -> Column:
    """For each span whether it is its stage's first that makes the weights' gradients: a W, or a full backward."""
    makes = np.flatnonzero(np.where(is_split, spans.op == W, spans.op == B))
    _, first = np.unique(spans.stage[makes], return_index=True)
    found = np.zeros(len(spans), dtype=bool)
    found[makes[first]] = True
    return found


def _column(values: list[Any], count: int) -> Column:
    return np.array(values, column_type(values, bound=count * max(values)))
