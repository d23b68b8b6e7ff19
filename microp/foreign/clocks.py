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

import numpy as np

from microp.foreign.names import TraceError
from microp.foreign.steps import RankStep, Traced
from microp.schedule import Schedule, remote_source
from microp.trace import Column, Span

MOST = 0.005  # of a step: a contradiction that is noise


def align(found: Traced) -> Traced:
    """Return the steps on one clock.

    Raises:
        TraceError: in no step the bounds can be met.
    """
    numbers = {file: number for number, file in enumerate(dict.fromkeys(lane.file for lane in found.lanes))}
    clocks = [numbers[lane.file] for lane in found.lanes]
    spans, ranks, moved, residual, corrected = {}, {}, 0, 0.0, 0.0
    refused: dict[int, str] = {}
    for step, rows in found.steps.items():
        length = max(row.ended - row.began for row in rows)
        if all(each.end <= each.start for row in rows for each in row.actions):
            refused[step] = "no action takes any time"
            continue
        for by_end in (False, True):  # ranges may contain waits: then only their ends are certain
            least, where = _bounds(found.schedule, rows, clocks, by_end)
            if (off := least.diagonal().max()) <= MOST * length:
                break
            refused.setdefault(
                step, f"{where} begins {off / 1e6:.3g} ms before its input was made, whatever the clocks"
            )
        else:
            continue
        refused.pop(step, None)
        # the offset of each clock, and by how much one may be off; noise is shared out
        least -= max(0.0, float(off))
        low, high = np.append(0.0, least[0, 1:]), np.append(0.0, -least[1:, 0])
        is_met = bool((least <= 0).all())
        offsets = np.zeros(len(low)) if is_met else (low + high) / 2
        free = np.maximum(-low, high) if is_met else (high - low) / 2
        residual, corrected = max(residual, float(free.max())), max(corrected, float(np.abs(offsets).max()))
        shifts = [int(offsets[clock]) for clock in clocks]
        spans[step], count = _spans(found.schedule, rows, shifts, length)
        moved += count
        pairs = zip(rows, shifts, strict=True)
        ranks[step] = [row._replace(began=row.began + shift, ended=row.ended + shift) for row, shift in pairs]
    left_out = [f"left out: step {step}: {why}" for step, why in refused.items()]
    if not spans:
        raise TraceError(f"no step can be used; {left_out[0]}: give each rank's own trace")
    notes = [*found.notes, *left_out]
    if moved:
        notes.append(f"{moved} actions begin before their input was made: the wait is taken off, but not the transfer")
    how = f"corrected by up to {corrected / 1e6:.4g} ms" if corrected else "left as they are"
    text = f"clocks {how}: no receive ends before its send began; they agree within {residual / 1e6:.3g} ms"
    clock = text if len(numbers) > 1 else "one clock"
    return found._replace(steps=ranks, spans=spans, clocks=clock, notes=notes)


def _bounds(schedule: Schedule, rows: Sequence[RankStep], clocks: Sequence[int], by_end: bool) -> tuple[Column, str]:
    """Return [a, b], the least o(b) - o(a), for all pairs of clocks, and an action that shows a contradiction.

    `by_end`: an action whose receive was not seen is only known to end after its input was made.
    """
    zero = min(row.began for row in rows)
    ends = {each.action: each.end - zero for row in rows for each in row.actions}
    least, needs = np.full((max(clocks) + 1,) * 2, -np.inf), [(0, "an action")]
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
    return least, max(needs)[1]


def _spans(schedule: Schedule, rows: Sequence[RankStep], offsets: Sequence[int], length: int) -> tuple[list[Span], int]:
    """Return the spans of a step, none before its input, and how many were moved whose receive was not seen.

    A rank waits for an input of another rank from the end of the action before, as `engine=torch` counts it; what else
    lies between two actions is the host's time.
    """
    ends = {each.action: each.end + offset for row, offset in zip(rows, offsets, strict=True) for each in row.actions}
    spans, moved = list[Span](), 0
    for rank, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
        free = row.began + offset
        for action, _, start, end, received in row.actions:
            source = remote_source(schedule, rank, action)
            made = start + offset if source is None else ends[source]
            moved += not received and made - start - offset > 1e-4 * length
            begin = max(free, min(max(start + offset, made), end + offset))
            spans.append(Span(rank, *action, begin if source is None else free, begin, begin, max(end + offset, begin)))
            free = spans[-1].end
    return spans, moved
