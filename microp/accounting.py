"""Where a rank's time went: every nanosecond of a step, booked once.

::

    step begins                                                                       step ends
    │ host │ wait for 0F0 │ F0 │ host │ wait for 1B0      │ B0 │ ... │ optimizer │ wait │
                                      ├─ dependency ─┬─ t ┤
                                                peer's end

With replicas, the sum of the gradients goes on after the last action: what the rank waits for
it, before its optimizer, is its reduction.

A wait is dependency wait up to the moment the peer had made the tensor, exposed transfer
after it. Booking all of it as communication would make the bubble vanish. Dependency waits
are told apart by where they lie: drain (after the rank's last forward, and after its own
end until the last rank ends), warm-up (of the others those before its first backward),
steady (between).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from microp.schedule import Action, Op, Schedule
from microp.trace import Span

KINDS = ("compute", "recompute", "optimizer", "transfer", "warmup", "steady", "drain", "reduction", "host")


class StepClock(NamedTuple):
    """What a rank's clock saw of a step beside its spans; nanoseconds.

    Attributes:
        began: when the step began on the rank.
        ended: when its optimizer had ended.
        optimizer: how long that took.
        recompute: the part of its backwards that ran forwards again.
        reduction: how long it waited after its last action for the sum over the replicas.
    """

    began: int
    ended: int
    optimizer: int
    recompute: int
    reduction: int = 0


def account(
    schedule: Schedule,
    spans: Sequence[Span],
    asked: Mapping[Action, int],
    clocks: Mapping[int, StepClock],
    wall: tuple[int, int] | None = None,
) -> dict[int, dict[str, int]]:
    """For each rank the nanoseconds of each of `KINDS`; on every rank they add up to the step's wall time.

    Args:
        schedule: what was run.
        spans: all ranks' spans of the step.
        asked: when each action began to wait for its input.
        clocks: the rest, a rank.
        wall: from when to when the step went on; None: on these ranks.
    """
    ends = {span.action: span.end for span in spans}
    began, ended = wall or (min(c.began for c in clocks.values()), max(c.ended for c in clocks.values()))
    booked = {}
    for rank, clock in clocks.items():
        own = sorted((span for span in spans if span.rank == rank), key=lambda span: span.start)
        time = dict.fromkeys(KINDS, 0)
        time["compute"] = sum(span.end - span.start for span in own) - clock.recompute
        time["recompute"], time["optimizer"], time["reduction"] = clock.recompute, clock.optimizer, clock.reduction
        time["host"] = (clock.began - began) + (clock.ended - clock.optimizer - clock.reduction - own[-1].end)
        free = clock.began
        for span in own:
            time["host"] += asked[span.action] - free
            wait, source = span.start - asked[span.action], schedule.source(span.action)
            if source is None or schedule.placement[source.stage] == rank:
                time["host"] += wait  # nothing travels
            else:
                missing = min(max(0, ends[source] - asked[span.action]), wait)
                time[_phase(span, own)] += missing
                time["transfer"] += wait - missing
            free = span.end
        time["drain"] += ended - clock.ended
        booked[rank] = time
    return booked


def _phase(span: Span, own: Sequence[Span]) -> str:
    """Where in the rank's step a wait before `span` lies."""
    last_forward = max(other.start for other in own if other.op is Op.F)
    first_backward = min(other.start for other in own if other.op is Op.B)
    if span.start > last_forward:
        return "drain"
    return "warmup" if span.start <= first_backward else "steady"
