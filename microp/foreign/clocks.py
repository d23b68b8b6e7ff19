"""Aligns the clocks of the ranks by what must hold: no receive ends before its send began.

::

    rank 0's clock   ··F0▐···········B0        o(1) - o(0) is at least as large that F0 of rank 1 starts after rank 0's,
    rank 1's clock   ····▐F0···B0▐···          and at most so large that B0 of rank 0 starts after rank 1's

The bounds of a step are closed under addition (longest paths between the clocks), which also shows contradictions. If
the clocks meet them as they are, they are left so; else each is put in the middle of its bounds, which meets them all,
because the lower and the upper ones do. The residual is the most by which a clock may still be off. Each step is
aligned by itself, so that drift does not add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from microp.foreign.names import TraceError
from microp.foreign.steps import RankStep, Steps
from microp.schedule import Schedule, remote_source
from microp.trace import Column, Span

MOST = 0.005  # of a step: a contradiction that is noise


class Aligned(NamedTuple):
    """The steps of a trace on one clock, in nanoseconds."""

    schedule: Schedule  # as in `Steps`
    spans: dict[int, list[Span]]  # number of the step -> the spans of all ranks, rank by rank
    ranks: dict[int, list[RankStep]]  # what else the ranks' steps tell; their actions are on the ranks' own clocks
    clocks: str  # how well the clocks agree, as a sentence
    notes: list[str]  # what was changed, and what can still be wrong


def align(found: Steps) -> Aligned:
    """Return the steps on one clock.

    Raises:
        TraceError: in no step the bounds can be met.
    """
    numbers = {file: number for number, file in enumerate(dict.fromkeys(lane.file for lane in found.lanes))}
    clocks = [numbers[lane.file] for lane in found.lanes]
    spans, ranks, moved, residual, corrected = {}, {}, 0, 0.0, 0.0
    refused: list[str] = []
    for step, rows in found.steps.items():
        length = max(row.ended - row.began for row in rows)
        if all(each.end <= each.start for row in rows for each in row.actions):
            refused.append(f"step {step}: no action takes any time")
            continue
        least, where = _bounds(found.schedule, rows, clocks, by_end=False)
        if (off := least.diagonal().max()) > MOST * length:  # ranges may contain waits: only their ends are certain
            refusal = f"step {step}: {where} begins {off / 1e6:.3g} ms before its input was made, whatever the clocks"
            least, _ = _bounds(found.schedule, rows, clocks, by_end=True)
            if least.diagonal().max() > MOST * length:
                refused.append(refusal)
                continue
        offsets, free = _offsets(least)
        residual, corrected = max(residual, free), max(corrected, float(np.abs(offsets).max()))
        shifts = [int(offsets[clock]) for clock in clocks]
        spans[step], count = _spans(found.schedule, rows, shifts, length)
        moved += count
        moments = [(row.began + shift, row.ended + shift) for row, shift in zip(rows, shifts, strict=True)]
        ranks[step] = [row._replace(began=b, ended=e) for row, (b, e) in zip(rows, moments, strict=True)]
    if not spans:
        raise TraceError(f"no step can be used; {refused[0]}: give each rank's own trace")
    notes = [f"left out: {text}" for text in refused]
    if moved:
        notes.append(f"{moved} actions begin before their input was made: the wait is taken off, but not the transfer")
    how = f"corrected by up to {corrected / 1e6:.4g} ms" if corrected else "left as they are"
    text = f"clocks {how}: no receive ends before its send began; they agree within {residual / 1e6:.3g} ms"
    return Aligned(found.schedule, spans, ranks, text if len(numbers) > 1 else "one clock", notes)


def _bounds(schedule: Schedule, rows: Sequence[RankStep], clocks: Sequence[int], by_end: bool) -> tuple[Column, str]:
    """Return [a, b], the least o(b) - o(a), for all pairs of clocks, and an action that shows a contradiction.

    `by_end`: an action whose receive was not seen is only known to end after its input was made.
    """
    zero = min(row.began for row in rows)
    ends = {each.action: each.end - zero for row in rows for each in row.actions}
    least = np.full((max(clocks) + 1,) * 2, -np.inf)
    needs = []
    for rank, row in enumerate(rows):
        for each in row.actions:
            if (source := remote_source(schedule, rank, each.action)) is not None:
                need = ends[source] - ((each.end if by_end and not each.received else each.start) - zero)
                pair = clocks[schedule.placement[source.stage]], clocks[rank]
                least[pair] = max(least[pair], need)
                needs.append((need, str(each.action)))
    np.fill_diagonal(least, np.maximum(least.diagonal(), 0))
    for middle in range(len(least)):
        least = np.maximum(least, least[:, middle, None] + least[None, middle, :])
    return least, max(needs, default=(0, "an action"))[1]


def _offsets(least: Column) -> tuple[Column, float]:
    """Return the offset of each clock, and by how much one may be off."""
    least = least - max(0.0, float(least.diagonal().max()))  # noise is shared out
    low, high = least[0].copy(), -least[:, 0]
    low[0] = high[0] = 0.0
    if (least <= 0).all():
        return np.zeros(len(low)), float(np.maximum(-low, high).max())
    return (low + high) / 2, float((high - low).max() / 2)


def _spans(schedule: Schedule, rows: Sequence[RankStep], offsets: Sequence[int], length: int) -> tuple[list[Span], int]:
    """Return the spans of a step, none before its input, and how many were moved whose receive was not seen.

    A rank waits for an input of another rank from the end of the action before, as `engine=torch` counts it; what else
    lies between two actions is the host's time.
    """
    ends = {each.action: each.end + offset for row, offset in zip(rows, offsets, strict=True) for each in row.actions}
    spans, moved = [], 0
    for rank, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
        free = row.began + offset
        for action, _, start, end, received in row.actions:
            source = remote_source(schedule, rank, action)
            made = start + offset if source is None else ends[source]
            moved += not received and made - start - offset > 1e-4 * length
            begin = max(free, min(max(start + offset, made), end + offset))
            waits = begin if source is None else free
            spans.append(Span(rank, *action, waits, begin, begin, max(end + offset, begin)))
            free = spans[-1].end
    return spans, moved
