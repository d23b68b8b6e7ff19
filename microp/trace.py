"""Spans, and what is read off them. Measured and simulated time are the same type.

::

    rank 0   |F0|F1|  .  |B0|B1|        busy: inside a span
    rank 1   .  |F0|B0|F1|B1|  .        bubble: the rest, 1 - busy / (ranks x makespan)

No function here knows whether its spans were measured or simulated. Times may be of any
number type (integers and Fractions stay exact); measured ones are nanoseconds of
`time.perf_counter_ns`, which is one clock for all processes of a host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from microp.schedule import Action, Op


class Span(NamedTuple):
    """One action on one rank's clock.

    `ready` is when its inputs were there: simulated, when the last of them arrived;
    measured, when the rank held them, which is the end of its wait for them.
    """

    rank: int
    op: Op
    stage: int
    microbatch: int
    start: Any
    end: Any
    ready: Any

    @property
    def action(self) -> Action:
        return Action(self.op, self.stage, self.microbatch)


def makespan(spans: Sequence[Span]) -> Any:
    """From the first start to the last end, over all ranks."""
    return max(span.end for span in spans) - min(span.start for span in spans)


def busy(spans: Iterable[Span]) -> dict[int, Any]:
    """rank -> the sum of its spans' lengths (spans of a rank do not overlap)."""
    total: dict[int, Any] = defaultdict(int)
    for span in spans:
        total[span.rank] += span.end - span.start
    return dict(total)


def bubble_fraction(spans: Sequence[Span]) -> Any:
    """1 - busy / (ranks x makespan): GPipe's definition, idle over total."""
    per_rank = busy(spans)
    return 1 - sum(per_rank.values()) / (len(per_rank) * makespan(spans))


def in_flight_peak(spans: Iterable[Span]) -> dict[int, int]:
    """rank -> the most (stage, microbatch) pairs forwarded and not yet backwarded at once."""
    now: Counter[int] = Counter()
    peak: Counter[int] = Counter()
    for span in sorted(spans, key=lambda span: span.start):
        now[span.rank] += {Op.F: 1, Op.B: -1, Op.W: 0}[span.op]
        peak[span.rank] = max(peak[span.rank], now[span.rank])
    return dict(peak)


def idle_edges(spans: Sequence[Span]) -> dict[int, tuple[Any, Any]]:
    """rank -> (idle before its first span, idle after its last) within the makespan."""
    first, last = min(s.start for s in spans), max(s.end for s in spans)
    edges = {}
    for rank in sorted({span.rank for span in spans}):
        own = [span for span in spans if span.rank == rank]
        edges[rank] = (min(s.start for s in own) - first, last - max(s.end for s in own))
    return edges


def median_times(spans: Iterable[Span]) -> dict[tuple[int, Op], Any]:
    """(stage, op) -> the median length of its spans."""
    lengths: dict[tuple[int, Op], list[Any]] = defaultdict(list)
    for span in spans:
        lengths[span.stage, span.op].append(span.end - span.start)
    return {key: median(values) for key, values in lengths.items()}
