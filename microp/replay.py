"""The prediction that stands beside a measured step: its own schedule, priced with its own action times.

::

    spans ── schedule_of ─► Schedule ─┐
      └───── costs.measured ─► Costs ─┴─ simulate ─► spans, predicted

What differs from the measurement is noise and overhead.
"""

from __future__ import annotations

from collections.abc import Sequence

from microp import costs
from microp.reduction import Reduction, after_last_gradient, reductions
from microp.schedule import Schedule
from microp.simulate import simulate
from microp.trace import Span


def schedule_of(spans: Sequence[Span], name: str) -> Schedule:
    """The schedule that was run: each rank's actions in the order of their starts."""
    ranks = range(max(span.rank for span in spans) + 1)
    in_order = sorted(spans, key=lambda span: span.start)
    rows = tuple(tuple(span.action for span in in_order if span.rank == rank) for rank in ranks)
    return Schedule(name, max(span.microbatch for span in spans) + 1, rows)


def predict(schedule: Schedule, spans: Sequence[Span]) -> Sequence[Span]:
    """The schedule's spans with the median times of the measured ones, in whole nanoseconds."""
    return simulate(schedule, costs.measured(schedule, spans))


def predict_sums(schedule: Schedule, spans: Sequence[Span], taken: Sequence[Reduction]) -> list[Reduction]:
    """The sums over the replicas beside `predict`'s spans, each as long as it took from the stage's last gradient on.

    Args:
        schedule: that was run.
        spans: as measured.
        taken: the reductions as measured; none where there is one replica.
    """
    times = after_last_gradient(schedule, spans, taken)
    return reductions(schedule, predict(schedule, spans), times) if times else []
