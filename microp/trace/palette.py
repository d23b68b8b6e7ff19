"""The colours of a timeline, stated once for all drawings.

::

                           F             B            W
    a rank's first stage   light blue    blue         light orange
    its second stage       middle blue   dark blue    orange           the third as the first, and so on

Colour-blind readers can tell blue from orange, and the four blues differ in lightness, also in greyscale.
"""

from __future__ import annotations

from collections.abc import Sequence

from microp.schedule import Op

COLOURS = {Op.F: ("#9ecae1", "#6baed6"), Op.B: ("#3182bd", "#08519c"), Op.W: ("#fdae6b", "#e6550d")}
INK = {Op.F: "black", Op.B: "white", Op.W: "black"}  # of a name on these
REDUCTION = "#636363"


def shade(stage: int, stages: Sequence[int]) -> int:
    """Return which of an op's two colours a stage has on a rank that holds `stages`, in the model's order."""
    return stages.index(stage) % 2
