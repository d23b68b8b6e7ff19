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
from typing import Any

import numpy as np

from microp.foreign.names import TraceError
from microp.foreign.steps import RankStep, Traced
from microp.schedule import Schedule, remote_source
from microp.trace import Span

MOST = 0.005  # of a step: a contradiction that is noise


def align(found: Traced) -> Traced:
    """Return the steps on one clock; TraceError: in no step the bounds can be met."""
    files = list(dict.fromkeys(lane.file for lane in found.lanes))
    clocks, schedule = [files.index(lane.file) for lane in found.lanes], found.schedule
    spans, ranks, refused = dict[int, list[Span]](), dict[int, list[RankStep]](), dict[int, str]()
    moved, residual, corrected = 0, 0.0, 0.0
    for step, rows in found.steps.items():
        # 1. the bounds; ranges may contain waits: then only their ends are certain
        length = max(row.ended - row.began for row in rows)
        least, action, off = _bounds(schedule, rows, clocks, by_end=False)
        if off > MOST * length:
            refused[step] = f"{action} begins {off / 1e6:.3g} ms before its input was made, whatever the clocks"
            least, _, off = _bounds(schedule, rows, clocks, by_end=True)
        if all(each.end <= each.start for row in rows for each in row.actions):
            refused[step], off = "no action takes any time", np.inf
        if off > MOST * length:
            continue
        refused.pop(step, None)
        # 2. the offset of each clock, and by how much one may be off; noise is shared out
        least = least - off
        low, high = np.append(0.0, least[0, 1:]), np.append(0.0, -least[1:, 0])
        is_met = bool((least <= 0).all())
        offsets = np.zeros(len(files)) if is_met else (low + high) / 2
        free = np.maximum(-low, high) if is_met else (high - low) / 2
        residual, corrected = max(residual, float(free.max())), max(corrected, float(np.abs(offsets).max()))
        # 3. the step with them
        shifts = [int(offsets[clock]) for clock in clocks]
        ranks[step] = [row.shifted(by) for row, by in zip(rows, shifts, strict=True)]
        spans[step] = _spans(schedule, ranks[step])
        moved += sum(
            not each.received and span.start - each.start > 1e-4 * length
            for each, span in zip((each for row in ranks[step] for each in row.actions), spans[step], strict=True)
        )
    left_out = [f"left out: step {step}: {why}" for step, why in refused.items()]
    if not spans:
        raise TraceError(f"no step can be used; {left_out[0]}: give each rank's own trace")
    notes = [*found.notes, *left_out]
    if moved:
        notes.append(f"{moved} actions begin before their input was made: the wait is taken off, but not the transfer")
    how = f"corrected by up to {corrected / 1e6:.4g} ms" if corrected else "left as they are"
    text = f"clocks {how}: no receive ends before its send began; they agree within {residual / 1e6:.3g} ms"
    return found._replace(steps=ranks, spans=spans, notes=notes, clocks=text if len(files) > 1 else "one clock")


def _bounds(
    schedule: Schedule, rows: Sequence[RankStep], clocks: Sequence[int], by_end: bool
) -> tuple[Any, str, float]:
    """Return [a, b], the least o(b) - o(a), for all pairs of clocks, and the worst action with its contradiction.

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
    return least, max(needs)[1], float(least.diagonal().max())


def _spans(schedule: Schedule, rows: Sequence[RankStep]) -> list[Span]:
    """Return the spans of a step, none before its input.

    A rank waits for an input of another rank from the end of the action before, as `engine=torch` counts it; what else
    lies between two actions is the host's time.
    """
    ends, spans = {each.action: each.end for row in rows for each in row.actions}, list[Span]()
    for rank, row in enumerate(rows):
        free = row.began
        for action, _, start, end, _ in row.actions:
            source = remote_source(schedule, rank, action)
            begin = max(free, start if source is None else min(max(start, ends[source]), end))
            spans.append(Span(rank, *action, begin if source is None else free, begin, begin, max(end, begin)))
            free = spans[-1].end
    return spans
