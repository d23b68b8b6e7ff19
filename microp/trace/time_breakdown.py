"""Breaks a rank's time down: every nanosecond of a step counts as exactly one kind.

::

    step begins                                                                       step ends
    │ host │ wait for 0F0 │ F0 │ host │ wait for 1B0      │ B0 │ ... │ optimizer │ wait │
                                      ├─ dependency ─┬─ t ┤
                                                peer's end

With replicas, the sum of the gradients continues after the last action. The time that the rank waits
for it, before its optimizer, is its reduction.

A wait is dependency wait until the peer has made the tensor, of a pair both its tensors, and exposed transfer after
that. If all of it counted as communication, no bubble would be left. There are three kinds of dependency wait:
drain (after the rank's last forward, and from its own end until the last rank ends), warmup (before
its first backward, if it is not drain), and steady (the others).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from microp.schedule import Action, Op, Schedule
from microp.trace.spans import Span, as_spans

KINDS = ("compute", "recompute", "optimizer", "transfer", "warmup", "steady", "drain", "reduction", "host")


class StepClock(NamedTuple):
    """One rank's times of a step that its spans do not contain, in nanoseconds."""

    began: int  # when the step began on the rank
    ended: int  # when its optimizer had ended
    optimizer: int
    recompute: int  # of its backwards, what went into recomputation
    reduction: int = 0  # how long it waited after its last action for the sum over the replicas


def account(
    schedule: Schedule, spans: Iterable[Span], clocks: Mapping[int, StepClock], wall: tuple[int, int] | None = None
) -> dict[int, dict[str, int]]:
    """Return, for each rank, the nanoseconds of each of `KINDS`; they add up to the step's wall time.

    The spans are those of all ranks; `clocks` is rank -> its clock, for each rank to return; `wall` is the step's begin
    and end, and None takes them from `clocks`. The cost is linear in the number of spans.
    """
    spans = as_spans(spans)
    ends: dict[Action, int] = {}
    rows: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        ends[span.action] = span.end
        rows[span.rank].append(span)
    ends |= {action: ends[partner] for action, partner in schedule.partners.items()}  # both outputs leave together
    step = wall or (min(c.began for c in clocks.values()), max(c.ended for c in clocks.values()))
    return {rank: _book(schedule, rows[rank], ends, clock, step) for rank, clock in clocks.items()}


def _book(
    schedule: Schedule, row: list[Span], ends: Mapping[Action, int], clock: StepClock, wall: tuple[int, int]
) -> dict[str, int]:
    """Return the nanoseconds of each of `KINDS` on one rank; `row` is in the order of time."""
    last_forward = max(span.start for span in row if span.op is Op.F)
    first_backward = min(span.start for span in row if span.op not in (Op.F, Op.W))
    time = dict.fromkeys(KINDS, 0)
    time["compute"] = sum(span.end - span.start for span in row) - clock.recompute
    time["recompute"], time["optimizer"], time["reduction"] = clock.recompute, clock.optimizer, clock.reduction
    time["host"] = (clock.began - wall[0]) + (clock.ended - clock.optimizer - clock.reduction - row[-1].end)
    free = clock.began
    for span in row:
        time["host"] += span.wait_start - free
        wait, pair = span.start - span.wait_start, (span.action, schedule.partners.get(span.action))
        needs = [schedule.source(each) for each in pair if each]
        peers = [ends[each] for each in needs if each and schedule.placement[each.stage] != span.rank]
        if not peers:
            time["host"] += wait  # no message is involved
        else:
            missing = min(max(0, max(peers) - span.wait_start), wait)
            early = "warmup" if span.start <= first_backward else "steady"
            time["drain" if span.start > last_forward else early] += missing
            time["transfer"] += wait - missing
        free = span.end
    time["drain"] += wall[1] - clock.ended
    return time
