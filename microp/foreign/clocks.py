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

from microp.foreign.reading import TraceError
from microp.foreign.steps import RankStep, Traced
from microp.schedule import Schedule, remote_source
from microp.trace import Span

MOST = 0.005  # of a step: a contradiction that is noise


def align(found: Traced) -> Traced:
    """Return the steps on one clock; TraceError: in no step the bounds can be met."""
    files = list(dict.fromkeys(lane.file for lane in found.lanes))
    clocks, schedule = [files.index(lane.file) for lane in found.lanes], found.schedule
    steps, refused, residual, corrected, is_late = dict[int, list[RankStep]](), dict[int, str](), 0.0, 0.0, False
    for step, rows in found.steps.items():
        # 1. the bounds; ranges may contain waits: then only their ends are certain
        most = MOST * max(row.ended - row.began for row in rows)
        least, action, off = _bounds(schedule, rows, clocks, "start")
        if has_waits := off > most:
            refused[step] = f"{action} begins {off / 1e6:.3g} ms before its input was made, whatever the clocks"
            least, _, off = _bounds(schedule, rows, clocks, "end")
            if off > most:
                continue
            del refused[step]
        # 2. the offset of each clock, and by how much one may be off; noise is shared out
        least = least - off
        low, high = np.append(0.0, least[0, 1:]), np.append(0.0, -least[1:, 0])
        is_met = bool((least <= 0).all())
        offsets = np.zeros(len(files)) if is_met else (low + high) / 2
        free = np.maximum(-low, high) if is_met else (high - low) / 2
        residual, corrected = max(residual, float(free.max())), max(corrected, float(np.abs(offsets).max()))
        # 3. the step with them
        steps[step], moved = _moved(schedule, rows, [int(offsets[clock]) for clock in clocks])
        is_late = is_late or has_waits or moved > most / 50
    left_out = [f"left out: step {step}: {why}" for step, why in refused.items()]
    if not steps:
        raise TraceError(f"no step can be used; {left_out[0]}: give each rank's own trace")
    late = "some actions begin before their input was made: the wait is taken off, but not the transfer"
    how = f"corrected by up to {corrected / 1e6:.4g} ms" if corrected else "left as they are"
    text = f"clocks {how}: no receive ends before its send began; they agree within {residual / 1e6:.3g} ms"
    notes = [*found.notes, *left_out, *[late] * is_late]
    return found._replace(steps=steps, notes=notes, clocks=text if len(files) > 1 else "one clock")


def _bounds(schedule: Schedule, rows: Sequence[RankStep], clocks: Sequence[int], moment: str) -> tuple[Any, str, float]:
    """Return [a, b], the least o(b) - o(a), for all pairs of clocks, and the worst action with its contradiction.

    `moment`: what of an action comes after its input was made, its `start` or only its `end`.
    """
    zero = min(row.began for row in rows)
    ends = {span.action: span.end - zero for row in rows for span in row.spans}
    least, needs = np.full((max(clocks) + 1,) * 2, -np.inf), [(0, "an action")]
    for rank, row in enumerate(rows):
        for span in row.spans:
            if (source := remote_source(schedule, rank, span.action)) is not None:
                needs.append((ends[source] - (getattr(span, moment) - zero), str(span.action)))
                pair = clocks[schedule.placement[source.stage]], clocks[rank]
                least[pair] = max(least[pair], needs[-1][0])
    np.fill_diagonal(least, np.maximum(least.diagonal(), 0))
    for middle in range(len(least)):
        least = np.maximum(least, least[:, middle, None] + least[None, middle, :])
    return least, max(needs)[1], float(least.diagonal().max())


def _moved(schedule: Schedule, rows: Sequence[RankStep], by: Sequence[int]) -> tuple[list[RankStep], int]:
    """Return a step with its clocks moved, no action before its input, and the most by which one had to be moved.

    A rank waits for an input of another rank from the end of the action before, as `engine=torch` counts it; what else
    lies between two actions is the host's time.
    """
    ends = {span.action: span.end + offset for row, offset in zip(rows, by, strict=True) for span in row.spans}
    step, most = list[RankStep](), 0
    for rank, (row, offset) in enumerate(zip(rows, by, strict=True)):
        spans, free = list[Span](), row.began + offset
        for span in row.spans:
            start, end, source = span.start + offset, span.end + offset, remote_source(schedule, rank, span.action)
            begin = max(free, start if source is None else min(max(start, ends[source]), end))
            most, wait = max(most, begin - start), begin if source is None else free
            free = max(end, begin)
            spans.append(Span(rank, *span.action, wait, begin, begin, free))
        step.append(row._replace(spans=spans, began=row.began + offset, ended=row.ended + offset))
    return step, most
