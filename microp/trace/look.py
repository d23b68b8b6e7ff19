"""What all drawings of timelines share: their colours, their units of time, and which actions carry names.

::

                           F             B, I         W
    a rank's first stage   light blue    blue         light orange
    its second stage       middle blue   dark blue    orange           the third as the first, and so on

Colour-blind readers can tell blue from orange, and the four blues differ in lightness, also in greyscale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple

from microp.schedule import Op

NAMES = {Op.F: "forward", Op.B: "backward", Op.I: "input gradient", Op.W: "weight gradient"}
_BLUE = "#3182bd", "#08519c"
COLOURS = {Op.F: ("#9ecae1", "#6baed6"), Op.B: _BLUE, Op.I: _BLUE, Op.W: ("#fdae6b", "#e6550d")}
BLACK, WHITE = "#000000", "#ffffff"  # by name they would be a terminal's own
INK = {Op.F: BLACK, Op.B: WHITE, Op.I: WHITE, Op.W: BLACK}  # of a name on these
REDUCTION = "#636363"


def shade(stage: int, stages: Sequence[int]) -> int:
    """Return which of an op's two colours a stage has on a rank that holds `stages`, in the model's order."""
    return stages.index(stage) % 2


class Scale(NamedTuple):
    """A unit of time for axes."""

    length: float  # one unit, in the spans' times
    unit: str
    short: str = ""  # what stands behind a number on a narrow axis


MILLISECONDS = Scale(1e6, "ms", " ms")  # for spans in nanoseconds
UNITS = Scale(1, "units of the costs")


def tick_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times the powers of ten that is not below `least`: what ticks lie apart."""
    power = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def named(ops: Sequence[str], has_room: Sequence[bool]) -> list[bool]:
    """Return which actions carry their names: those with room, of an op of which nine in ten of these have room.

    So neither noise nor rounding makes named and nameless actions of an op alternate.
    """
    count, roomy = Counter(ops), Counter(op for op, room in zip(ops, has_room, strict=True) if room)
    return [room and roomy[op] >= 0.9 * count[op] for op, room in zip(ops, has_room, strict=True)]
