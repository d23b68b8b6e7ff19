"""Spans, and what is computed from them: makespan, bubbles, a breakdown of time, and drawings.

::

    spans ──┬── metrics          makespan, three bubbles, microbatches in flight
            ├── time_breakdown   where each nanosecond of a step went
            ├── reductions       the sums over replicas that follow the actions
            └── drawing          text, figure, Perfetto trace
"""

from microp.trace.drawing import MILLISECONDS, UNITS, figure, perfetto, picture, text
from microp.trace.metrics import (
    bubble_fraction,
    busy,
    idle_edges,
    idle_fraction,
    in_flight_peak,
    makespan,
    megatron_bubble,
    zero_bubble_rate,
)
from microp.trace.reductions import (
    Reduction,
    after_last_gradient,
    ends_at,
    exposed,
    reductions,
    time_reducing,
)
from microp.trace.spans import (
    MOMENTS,
    Actions,
    B,
    Column,
    F,
    Span,
    Spans,
    StepTrace,
    W,
    as_spans,
    column_type,
)
from microp.trace.time_breakdown import KINDS, StepClock, account

__all__ = [
    "KINDS",
    "MILLISECONDS",
    "MOMENTS",
    "UNITS",
    "Actions",
    "B",
    "Column",
    "F",
    "Reduction",
    "Span",
    "Spans",
    "StepClock",
    "StepTrace",
    "W",
    "account",
    "after_last_gradient",
    "as_spans",
    "bubble_fraction",
    "busy",
    "column_type",
    "ends_at",
    "exposed",
    "figure",
    "idle_edges",
    "idle_fraction",
    "in_flight_peak",
    "makespan",
    "megatron_bubble",
    "perfetto",
    "picture",
    "reductions",
    "text",
    "time_reducing",
    "zero_bubble_rate",
]
