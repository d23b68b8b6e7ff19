"""When gradients are summed over the replicas: a rank's reductions beside its actions.

::

    rank 0   F0 F1 ........ B0 B1│██████│          exposed: nothing hides it
    rank 1   .. F0 B0 F1 B1│██████│                hidden in the drain
                           └─ the stage's last weight gradient: its reduction may start

Reductions of one rank follow each other, in the order in which its stages are done. What is
said here holds for simulated and for measured spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from microp.schedule import Action, Op, Schedule
from microp.trace import Span


class Reduction(NamedTuple):
    """A sum over the replicas, of a stage's gradients or of a part of them, on one rank's clock."""

    rank: int
    stage: int
    start: Any
    end: Any


def last_gradients(schedule: Schedule) -> dict[int, Action]:
    """stage -> the action that adds to its weights' gradients last: a W, or a full backward."""
    return {
        action.stage: action
        for row in schedule.ranks
        for action in row
        if action.op is Op.W or (action.op is Op.B and (action.stage, action.microbatch) not in schedule.split)
    }


def reductions(schedule: Schedule, spans: Iterable[Span], times: Sequence[Any]) -> list[Reduction]:
    """Each stage's reduction of `times[stage]`: from its last gradient's end, or from the end of the one before.

    Raises:
        ValueError: not one time a stage.
    """
    if len(times) != schedule.stages:
        raise ValueError(f"{len(times)} reduction times for {schedule.stages} stages: give one a stage")
    ends, last = {span.action: span.end for span in spans}, last_gradients(schedule)
    found = []
    for rank in range(len(schedule.ranks)):
        free = None
        for stage in sorted(schedule.stages_of(rank), key=lambda stage: ends[last[stage]]):
            start = ends[last[stage]] if free is None else max(ends[last[stage]], free)
            free = start + times[stage]
            found.append(Reduction(rank, stage, start, free))
    return found


def after_last_gradient(schedule: Schedule, spans: Iterable[Span], found: Iterable[Reduction]) -> tuple[Any, ...]:
    """How long each stage's reduction took since it might have begun, as `reductions` wants it; empty without any."""
    ends = {span.action: span.end for span in spans}
    last = last_gradients(schedule)
    over: dict[int, Any] = {}
    for reduction in found:
        over[reduction.stage] = max(reduction.end, over.get(reduction.stage, reduction.end))
    if set(over) != set(range(schedule.stages)) or not ends:
        return ()
    times = dict.fromkeys(over, 0)
    for rank in range(len(schedule.ranks)):
        free = None
        for stage in sorted(schedule.stages_of(rank), key=lambda stage: ends[last[stage]]):
            start = ends[last[stage]] if free is None else max(ends[last[stage]], free)
            times[stage], free = max(0, over[stage] - start), max(over[stage], start)
    return tuple(times[stage] for stage in range(schedule.stages))


def ends_at(spans: Iterable[Span], found: Iterable[Reduction]) -> Any:
    """When the last action and the last reduction are over."""
    return max([*(span.end for span in spans), *(reduction.end for reduction in found)])


def exposed(spans: Sequence[Span], found: Iterable[Reduction]) -> dict[int, Any]:
    """rank -> how long its last reduction goes on after its last action."""
    last_action: dict[int, Any] = {}
    for span in spans:
        last_action[span.rank] = max(span.end, last_action.get(span.rank, span.end))
    left = dict.fromkeys(last_action, 0)
    for reduction in found:
        left[reduction.rank] = max(left[reduction.rank], reduction.end - last_action[reduction.rank])
    return left


def under_way(found: Iterable[Reduction]) -> Any:
    """How long at least one of a rank's reductions was under way."""
    total, until = 0, None
    for reduction in sorted(found, key=lambda reduction: reduction.start):
        start = reduction.start if until is None else max(until, reduction.start)
        total += max(0, reduction.end - start)
        until = max(start, reduction.end)
    return total
