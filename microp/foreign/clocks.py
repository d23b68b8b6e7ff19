"""Aligns the clocks of the ranks by what must hold: no receive ends before its send began.

::

    rank 0's clock   ··F0▐···········B0        o(1) - o(0) is at least      a: F0 of rank 1 starts after F0 of rank 0
    rank 1's clock   ····▐F0···B0▐···          and at most                  b: B0 of rank 0 starts after B0 of rank 1

All bounds of a step are closed under addition (the longest paths between each two clocks), which also shows whether
they contradict each other. If no correction meets them, the clocks are left as they are; else each is put in the middle
of its bounds, which meets them all, because the bounds themselves do. The residual is the most by which a clock may
still be off: half the distance of its bounds. Each step is aligned by itself, so that drift does not add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.foreign.names import TraceError
from microp.foreign.steps import RankStep, Steps
from microp.schedule import Schedule, remote_source
from microp.trace import Span

MOST = 0.005  # of a step: the error of a bubble that is not told apart


class Aligned(NamedTuple):
    """The steps of a trace on one clock.

    Attributes:
        spans: number of the step -> the spans of all ranks, rank by rank, in nanoseconds.
        ranks: the same with what else the ranks' steps tell.
        residual: nanoseconds by which a clock may be off, the most over the steps.
        corrected: the largest correction, in nanoseconds.
        notes: what was changed, and what can still be wrong.
    """

    spans: dict[int, list[Span]]
    ranks: dict[int, list[RankStep]]
    residual: int
    corrected: int
    notes: list[str]


def align(found: Steps) -> Aligned:
    """Return the steps on one clock.

    Raises:
        TraceError: in no step the bounds can be met.
    """
    clocks = {clock: number for number, clock in enumerate(dict.fromkeys(lane.clock for lane in found.lanes))}
    of_rank = [clocks[lane.clock] for lane in found.lanes]
    spans, ranks, notes = {}, {}, list[str]()
    residual = corrected = moved = 0
    refused: dict[int, str] = {}
    for step, rows in found.steps.items():
        bounds = _bounds(found.schedule, rows, of_rank, len(clocks))
        length = max(row.ended for row in rows) - max(row.began for row in rows)
        if bounds.contradiction > MOST * length:  # the ranges may contain waits: only their ends are certain
            loose = _bounds(found.schedule, rows, of_rank, len(clocks), by_end=True)
            if loose.contradiction > MOST * length:
                refused[step] = (
                    f"step {step}: {bounds.action} begins {bounds.contradiction / 1e6:.3g} ms before its input was "
                    "made, whatever the clocks"
                )
                continue
            bounds = loose
        offsets, free = bounds.offsets()
        residual, corrected = max(residual, free), max(corrected, int(np.abs(offsets).max()))
        shifted = [_shifted(row, int(offsets[clock])) for row, clock in zip(rows, of_rank, strict=True)]
        shifted, count = _after_inputs(found.schedule, shifted)
        moved += count
        ranks[step], spans[step] = shifted, _spans(found.schedule, shifted)
    if not spans:
        raise TraceError(f"the trace contradicts itself: {next(iter(refused.values()))}; give each rank's own file")
    notes += [f"left out: {text}" for text in refused.values()]
    if moved:
        notes.append(
            f"{moved} actions begin before their input was made, so their ranges contain a wait: it is taken off up to "
            "there, and what is left may still contain a transfer"
        )
    return Aligned(spans, ranks, residual, corrected, notes)


class _Bounds(NamedTuple):
    """What must hold of the clocks' offsets o: `least[a, b]` <= o(b) - o(a); -inf where nothing is known."""

    least: NDArray[np.float64]
    contradiction: float  # by how much no offsets can meet them
    action: str  # where one clock alone shows that most

    def offsets(self) -> tuple[NDArray[np.int64], int]:
        """Return the offset of each clock, and by how much one may be off."""
        slack = max(0.0, self.contradiction)
        low, high = self.least[0] - slack, -self.least[:, 0] + slack
        low[0] = high[0] = 0
        known = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(known, low, 0), np.where(known, high, 0)
        if (self.least <= slack).all():
            return np.zeros(len(low), np.int64), round(float(np.maximum(-low, high).max())) if len(low) > 1 else 0
        return np.round((low + high) / 2).astype(np.int64), round(float((high - low).max() / 2))


def _bounds(
    schedule: Schedule, rows: Sequence[RankStep], of_rank: Sequence[int], count: int, by_end: bool = False
) -> _Bounds:
    """Return the bounds of one step; `by_end`: an action whose receive was not seen is only known to end after it."""
    zero = min(row.began for row in rows)
    ends = {each.action: each.end - zero for row in rows for each in row.actions}
    least = np.full((count, count), -np.inf)
    worst: tuple[float, str] = (0.0, "an action")
    for rank, row in enumerate(rows):
        for each in row.actions:
            source = remote_source(schedule, rank, each.action)
            if source is None:
                continue
            sender, mine = of_rank[schedule.placement[source.stage]], of_rank[rank]
            need = ends[source] - ((each.end if by_end and not each.received else each.start) - zero)
            worst = max(worst, (float(need), str(each.action)))
            least[sender, mine] = max(least[sender, mine], need)
    for middle in range(count):
        least = np.maximum(least, least[:, middle, None] + least[None, middle, :])
    return _Bounds(least, float(max(0.0, least.diagonal().max())), worst[1])


def _shifted(row: RankStep, offset: int) -> RankStep:
    actions = [
        each._replace(opened=each.opened + offset, start=each.start + offset, end=each.end + offset)
        for each in row.actions
    ]
    return row._replace(actions=actions, began=row.began + offset, ended=row.ended + offset)


def _after_inputs(schedule: Schedule, rows: Sequence[RankStep]) -> tuple[list[RankStep], int]:
    """Return the step with no action before its input, and how many of those whose receive was not seen were moved."""
    ends = {each.action: each.end for row in rows for each in row.actions}
    length = max(row.ended for row in rows) - min(row.began for row in rows)
    moved, fixed = 0, []
    for rank, row in enumerate(rows):
        actions = []
        for each in row.actions:
            source = remote_source(schedule, rank, each.action)
            if source is not None and each.start < ends[source]:
                moved += not each.received and ends[source] - each.start > 1e-4 * length
                each = each._replace(start=min(ends[source], each.end))
            actions.append(each)
        fixed.append(row._replace(actions=actions))
    return fixed, moved


def _spans(schedule: Schedule, rows: Sequence[RankStep]) -> list[Span]:
    """Return the spans of a step.

    A rank waits for a receive from the begin of the range that has it, and for an input without one from the end of the
    action before; what else lies between two actions is the host's time.
    """
    spans = []
    for rank, row in enumerate(rows):
        free = row.began
        for timed in row.actions:
            op, stage, microbatch = timed.action
            start = max(timed.start, free)
            from_here = remote_source(schedule, rank, timed.action) is None
            waits = start if from_here else min(start, max(free, timed.opened)) if timed.received else free
            spans.append(Span(rank, op, stage, microbatch, waits, start, start, max(timed.end, start)))
            free = spans[-1].end
    return spans
