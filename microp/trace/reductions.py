"""Times the reductions: the sums of the stages' gradients over the replicas, or over the copies of the model.

::

    rank 0   F0 F1 ........ B0 B1│██████│          exposed: it ends after the last action
    rank 1   .. F0 B0 F1 B1│██████│                hidden in the drain
                           └─ the stage's last weight gradient: its reduction may start

The reductions of a rank run one after the other, in the order of their stages' last gradients. Those over copies begin
when all ranks with a copy of the stage have ended their actions. All functions take simulated or measured spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from microp.schedule import Schedule
from microp.trace.spans import Span


class Reduction(NamedTuple):
    """A sum over the replicas, of a stage's gradients or of a part of them, on one rank's clock."""

    rank: int
    stage: int
    start: Any
    end: Any


def reductions(schedule: Schedule, spans: Iterable[Span], times: Sequence[Any]) -> list[Reduction]:
    """Return one reduction per stage that trains something, from its last gradient or the end of the one before it.

    `times` has the time of each stage's reduction, in the spans' unit.

    Raises:
        ValueError: there is not one time per stage.
    """
    if len(times) != schedule.stages:
        raise ValueError(f"{len(times)} reduction times for {schedule.stages} stages: give one per stage")
    summed = []
    for rank, queue in enumerate(_queues(schedule, spans)):
        free = queue[0][1] if queue else 0
        for stage, made in queue:
            start = max(made, free)
            free = start + times[stage]
            summed.append(Reduction(rank, stage, start, free))
    return summed


def after_last_gradient(schedule: Schedule, spans: Iterable[Span], sums: Iterable[Reduction]) -> tuple[Any, ...]:
    """Return each stage's time from the earliest start of its reduction to its end, as `reductions` takes it.

    The result is empty unless there are spans and every stage that trains something has a reduction.
    """
    reduced: dict[int, Any] = {}  # stage -> the end of its last reduction
    for reduction in sums:
        reduced[reduction.stage] = max(reduction.end, reduced.get(reduction.stage, reduction.end))
    spans = list(spans)
    if set(reduced) != set(schedule.last_gradients) or not spans:
        return ()
    times: dict[int, Any] = {}
    for queue in _queues(schedule, spans):
        free = queue[0][1] if queue else 0
        for stage, made in queue:
            start = max(made, free)
            times[stage], free = max(0, reduced[stage] - start), max(reduced[stage], start)
    return tuple(times.get(stage, 0) for stage in range(schedule.stages))


def _queues(schedule: Schedule, spans: Iterable[Span]) -> list[list[tuple[int, Any]]]:
    """Return, for each rank, its stages with the times at which their sums may begin, in the order of these."""
    ends = {span.action: span.end for span in spans}
    made = {stage: ends[action] for stage, action in schedule.last_gradients.items()}
    if schedule.copies > 1:
        last = [max(ends[action] for action in row) for row in schedule.ranks]
        made = {stage: max(last[rank] for rank in schedule.holders(stage)) for stage in made}
    return [
        sorted(((stage, made[stage]) for stage in schedule.stages_of(rank) if stage in made), key=itemgetter(1))
        for rank in range(len(schedule.ranks))
    ]


def ends_at(spans: Iterable[Span], sums: Iterable[Reduction]) -> Any:
    """Return the time at which all actions and reductions have ended."""
    return max([*(span.end for span in spans), *(reduction.end for reduction in sums)])


def exposed(spans: Sequence[Span], sums: Iterable[Reduction]) -> dict[int, Any]:
    """Return rank -> the time from its last action's end to its last reduction's end; at least 0."""
    last_action: dict[int, Any] = {}
    for span in spans:
        last_action[span.rank] = max(span.end, last_action.get(span.rank, span.end))
    left = dict.fromkeys(last_action, 0)
    for reduction in sums:
        left[reduction.rank] = max(left[reduction.rank], reduction.end - last_action[reduction.rank])
    return left


def time_reducing(sums: Iterable[Reduction]) -> Any:
    """Return the time during which at least one of a rank's reductions was running."""
    total, until = 0, None
    for reduction in sorted(sums, key=lambda reduction: reduction.start):
        start = reduction.start if until is None else max(until, reduction.start)
        total += max(0, reduction.end - start)
        until = max(start, reduction.end)
    return total
