"""The activation bytes of a microbatch on each stage.

::

    2 segments, a = activation, b = boundary            h = bytes from B to W

    action       F0      F1      B0            W0     ...
    held after   2b      4b    2b + h        2b + g      a microbatch: 2b from F to B, h from B to W
    peak during  2b+t    4b+t  4b + a/2 + u  2b + h + v  in a B one segment is recomputed: a/2

g = gradients of the weights, held from the first one on; t, u and v = extra bytes while an F, a B and a W
run. Without recomputation an F holds `a`. Without g, t, u and v, a rank that holds n microbatches
needs n a without recomputation, and n s b + a/s with s segments (Chen et al., arXiv 1604.06174;
in a pipeline every microbatch in flight keeps its s segment inputs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from microp.simulator.costs import at, check_spared, check_stages, ratio


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one microbatch, one value per stage; an empty tuple means 0 on every stage.

    Attributes:
        activation: kept by F for B without recomputation.
        boundary: the tensor that enters a segment.
        pending: kept by B for W, if there is a W.
        in_forward: needed while an F runs, in addition to what it keeps.
        in_backward: needed while a B runs, in addition to what F kept and a recomputed segment.
        in_full: the same while an undivided B runs, in a schedule that divides others.
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
    in_forward: tuple[Any, ...] = ()
    in_full: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.check(len(self.activation))
        check_spared("stage_memory", self.spared)

    def check(self, stages: int) -> None:
        """Raise ValueError unless there is a value for each of `stages` stages."""
        optional = ("boundary", "pending", "in_backward", "in_weight", "gradients", "segments", "in_forward", "in_full")
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
