"""Computes makespan, bubbles, microbatches in flight, idle times and the times of actions from spans.

The literature has three definitions of the bubble:

| function | idle time over | with equal stages and no hops, GPipe and 1F1B | source |
|---|---|---|---|
| `bubble_fraction` | the makespan | (K-1) / (M+K-1) | GPipe, arXiv 1811.06965, section 2.3 |
| `megatron_bubble` | the busy time | (K-1) / M | Narayanan et al., arXiv 2104.04473, section 2.2.1 |
| `zero_bubble_rate` | the longest span of a rank | (K-1) / (M+K-1) | Qi et al., arXiv 2401.10241, table 5 |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from microp.schedule import Schedule
from microp.trace.spans import Span, as_spans


def makespan(spans: Iterable[Span]) -> Any:
    """Return the time from the first start to the last end, over all ranks."""
    first, last = _edges(spans)
    return max(last.values()) - min(first.values())


def busy(spans: Iterable[Span]) -> dict[int, Any]:
    """Return rank -> the sum of its spans' lengths (spans of a rank do not overlap)."""
    spans = as_spans(spans)
    return spans.per_rank(spans.end - spans.start, np.add)


def idle_fraction(busy: Sequence[Any], total: Any) -> Any:
    """Return 1 - busy / (ranks x total): the idle fraction of the ranks' time.

    `busy` has each rank's busy time; `total` is the time of every rank: the makespan, or the longest span of a rank.
    """
    return 1 - sum(busy) / (len(busy) * total)


def bubble_fraction(spans: Iterable[Span]) -> Any:
    """Return idle over total time, GPipe's definition of the bubble."""
    spans = as_spans(spans)
    return idle_fraction(list(busy(spans).values()), makespan(spans))


def megatron_bubble(spans: Iterable[Span]) -> Any:
    """Return idle over ideal time, Megatron's definition: ranks x makespan / busy - 1."""
    per_rank = busy(spans := as_spans(spans))
    return (len(per_rank) * makespan(spans)) / sum(per_rank.values()) - 1


def zero_bubble_rate(spans: Iterable[Span]) -> Any:
    """Return the idle part of the longest span of a rank, Zero Bubble's definition.

    The time of a step is the longest time from a rank's own first start to its last end, since
    the next step may begin on one rank while this one ends on another.

    ::

        rank 0   F0 F1 F2 I0 W0 I1 W1 I2 W2              a step that is a parallelogram has no
        rank 1      F0 I0 F1 I1 F2 I2 W0 W1 W2           bubble: the next step follows directly
    """
    per_rank = busy(spans := as_spans(spans))
    first, last = _edges(spans)
    return idle_fraction(list(per_rank.values()), max(last[rank] - first[rank] for rank in per_rank))


BUBBLES = {"gpipe": bubble_fraction, "megatron": megatron_bubble, "zero_bubble": zero_bubble_rate}


def in_flight_peak(spans: Iterable[Span]) -> dict[int, int]:
    """Return rank -> the largest number of (stage, microbatch) pairs forwarded and not yet backwarded."""
    spans = as_spans(spans)
    changes = np.array([1, -1, -1, 0])[spans.op]  # of F, B, I and W
    in_flight = np.cumsum(changes)  # on top of those that other ranks have left
    before = (in_flight - changes)[spans.first].tolist()
    peaks = spans.per_rank(in_flight, np.maximum)
    return {rank: peak - left for (rank, peak), left in zip(peaks.items(), before, strict=True)}


def microbatches_in_flight(schedule: Schedule, spans: Iterable[Span]) -> list[Fraction]:
    """Return the most microbatches in flight on each rank; one counts whole if all stages of its copy hold it."""
    return [
        Fraction(peak * schedule.copies, len(schedule.stages_of(rank)) * schedule.slices)
        for rank, peak in in_flight_peak(spans).items()
    ]


def action_times(spans: Sequence[Span]) -> Any:
    """Return the columns of a row that follow from one rank's spans, in nanoseconds and in its order; see `StepRow`."""
    taken = defaultdict[str, list[int]](list)
    for span in spans:
        taken[f"{span.stage}{span.op}"].append(span.end - span.start)
    return {
        "compute_ms": sum(map(sum, taken.values())) / 1e6,
        "wait_ms": sum(span.start - span.wait_start for span in spans) / 1e6,
        "first_start_ns": spans[0].start,
        "last_end_ns": spans[-1].end,
        "action_ms": {name: sum(each) / (len(each) * 1e6) for name, each in taken.items()},
    }


def idle_edges(spans: Iterable[Span]) -> dict[int, tuple[Any, Any]]:
    """Return rank -> (idle before its first span, idle after its last one) within the makespan."""
    first, last = _edges(spans)
    begin, end = min(first.values()), max(last.values())
    return {rank: (first[rank] - begin, end - last[rank]) for rank in first}


def early_receive(schedule: Schedule, spans: Iterable[Span]) -> Any:
    """Return by how much a receive ended before its send began, the most over all hops; 0 if none did.

    On one clock none does. It shows how far the clocks of two hosts, on which ranks are, differ at least.
    """
    by_action = {span.action: span for span in spans}
    early = [0]
    for span in by_action.values():
        source = schedule.source(span.action)
        if source in by_action and by_action[source].rank != span.rank:
            early.append(by_action[source].end - span.ready)
    return max(early)


def _edges(spans: Iterable[Span]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return rank -> its first start, and rank -> its last end."""
    spans = as_spans(spans)
    return spans.per_rank(spans.start, np.minimum), spans.per_rank(spans.end, np.maximum)
