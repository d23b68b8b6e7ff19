"""2BP: another order with divided backwards, whose weight gradients come last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any, cast

from microp.schedule import builders
from microp.schedule.builders.phases import defer_weights
from microp.schedule.schedule import Schedule, rows


def two_bp(ranks: int, chunks: int, of: str = "1f1b", **keys: Any) -> Schedule:
    """Return 2BP: the order of another schedule with an I for every B, and every W after a rank's last I.

    ::

        rank 0  F0 F1  . I0 F2 I1 F3 I2  . I3 W0 W1 W2 W3
        rank 1   . F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3  .

    The step is as long as that schedule's with B as short as I, and all W: M T + (K-1)(f+b) where it is M T +
    (K-1)(f+b+w). All M microbatches are held (Rae et al., 2BP: 2-Stage Backpropagation, arXiv 2405.18047).

    Args:
        of: the schedule, by its name or by the path of its builder; each of its backwards is a B.
        keys: those of that schedule.

    Raises:
        ValueError: there is no such schedule, or it divides backwards itself.
    """
    Schedule("two_bp", chunks, ((),) * ranks)  # refuses numbers that are no numbers of ranks and microbatches
    base = builder_of(of)(ranks, chunks, **keys)
    if base.input_gradients:
        raise ValueError(f"schedule.of={of} divides backwards itself: use one of full backwards, for example 1f1b")
    name = base.name if of in builders.ORDERS else of  # another builder can return any name
    order = rows(defer_weights(row, lag=len(row)) for row in base.ranks)
    return replace(base, name="two_bp" if name == "1f1b" else f"two_bp_{name}", ranks=order)


def builder_of(name: str) -> Callable[..., Schedule]:
    """Return the builder of one of microp's schedules, or the one at a path such as `mine.backwards_first`."""
    known = {**builders.ORDERS, "file": builders.from_file}
    if name in known:
        return known[name]
    try:
        return cast(Callable[..., Schedule], resolve_name(name))
    except (ImportError, AttributeError, ValueError) as error:
        names = ", ".join(known)
        raise ValueError(
            f"schedule.of={name} is no schedule ({error}): use MODULE.FUNCTION or one of {names}"
        ) from None
