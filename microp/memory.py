"""What a rank holds: activation bytes predicted from spans, which may be simulated or measured.

::

    2 segments, a = activation, b = boundary            h = bytes from B to W

    action       F0      F1      B0      W0     ...
    held after   2b      4b    2b + h    2b             one microbatch: from F to B, and from B to W
    at most      2b      4b    4b + a/2  2b + h         inside a B one segment is whole again

Without recomputation an F holds `a` and a B needs no more than it finds. The law of a rank
that holds n microbatches follows: n a without recomputation, n g b + a/g with g segments
(Chen et al., arXiv 1604.06174; in a pipeline every microbatch in flight keeps its g inputs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from microp.costs import at, check_spared, check_stages, ratio
from microp.trace import B, Column, F, Span, W, column_type, columns


@dataclass(frozen=True)
class Footprint:
    """Bytes of one microbatch, a value a stage; an empty tuple means 0 on every stage.

    Attributes:
        activation: what F keeps for B where nothing is recomputed.
        boundary: the tensor that enters a segment.
        pending: what B keeps for W, where there is a W.
        segments: into how many segments the stage is cut, all of them recomputed; 0: none is.
        spared: the microbatches that are not recomputed.

    Raises:
        ValueError: lists that differ in length, or a negative value; each names the key.
    """

    activation: tuple[Any, ...]
    boundary: tuple[Any, ...] = ()
    pending: tuple[Any, ...] = ()
    segments: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.check(len(self.activation))
        check_spared("footprint", self.spared)

    def check(self, stages: int) -> None:
        """Raise ValueError unless this is the footprint of `stages` stages."""
        optional = {name: getattr(self, name) for name in ("boundary", "pending", "segments")}
        given = {name: values for name, values in optional.items() if values}
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
    kept = _column([each.kept(s) for each in footprints for s in range(stages)], len(spans))[stage]
    rebuilt = _column([each.rebuilt(s) for each in footprints for s in range(stages)], len(spans))[stage]
    pending = _column([at(footprint.pending, s) for s in range(stages)], len(spans))[spans.stage]
    backward = np.where(spans.is_split(), pending, 0) - kept
    changes = np.select([spans.op == F, spans.op == B, spans.op == W], [kept, backward, -pending])
    held = spans.running(changes)
    inside = held - changes + rebuilt
    return spans.per_rank(np.where(spans.op == B, np.maximum(held, inside), held), np.maximum)


def _column(values: list[Any], count: int) -> Column:
    return np.array(values, column_type(values, bound=count * max(values)))
