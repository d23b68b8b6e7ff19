"""2BP: another order with divided backwards, whose weight gradients come last."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from microp.schedule.builders.gpipe import breadth_first, gpipe
from microp.schedule.builders.interleaved import interleaved
from microp.schedule.builders.one_f_one_b import eager_1f1b, one_f_one_b
from microp.schedule.builders.phases import defer_weights
from microp.schedule.schedule import Schedule, rows

UNDIVIDED: Mapping[str, Callable[[int, int], Schedule]] = {  # the orders of full backwards
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager_1f1b": eager_1f1b,
    "interleaved": interleaved,
    "breadth_first": breadth_first,
}


def two_bp(ranks: int, chunks: int, of: str = "1f1b") -> Schedule:
    """Return 2BP: the order of another schedule with an I for every B, and every W after a rank's last I.

    ::

        rank 0  F0 F1  . I0 F2 I1 F3 I2  . I3 W0 W1 W2 W3
        rank 1   . F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3  .

    The step is M T + (K-1)(f+b) long where that schedule takes M T + (K-1)(f+b+w), and all M microbatches are
    held (Rae et al., 2BP: 2-Stage Backpropagation, arXiv 2405.18047).

    Args:
        of: the schedule: gpipe, 1f1b, eager_1f1b, interleaved or breadth_first.

    Raises:
        ValueError: `of` is another one.
    """
    if of not in UNDIVIDED:
        raise ValueError(f"schedule.of={of} has no order of full backwards: use one of {', '.join(UNDIVIDED)}")
    Schedule("two_bp", chunks, ((),) * ranks)  # refuses numbers that are no numbers of ranks and microbatches
    base = UNDIVIDED[of](ranks, chunks)
    return Schedule("two_bp", chunks, rows(defer_weights(row, lag=len(row)) for row in base.ranks))
