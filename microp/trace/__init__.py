"""Spans, and what is computed from them: makespan, bubbles, a breakdown of time, and drawings.

::

    spans ──┬── metrics          makespan, three bubbles, microbatches in flight
            ├── time_breakdown   where each nanosecond of a step went
            ├── reductions       the sums over replicas that follow the actions
            └── timeline         as text; drawing: as a figure; perfetto: for ui.perfetto.dev
"""

from microp.trace.drawing import DRAWN, figure, save, sheet, svg
from microp.trace.look import COLOURS, INK, MILLISECONDS, NAMES, REDUCTION, UNITS, WHITE, Scale, shade
from microp.trace.metrics import (
    BUBBLES,
    action_times,
    bubble_fraction,
    busy,
    early_receive,
    idle_edges,
    idle_fraction,
    in_flight_peak,
    makespan,
    megatron_bubble,
    microbatches_in_flight,
    zero_bubble_rate,
)
from microp.trace.perfetto import perfetto
from microp.trace.reductions import Reduction, after_last_gradient, ends_at, exposed, reductions, time_reducing
from microp.trace.spans import MOMENTS, Actions, B, Column, F, I, Span, Spans, StepTrace, W, as_spans, column_type
from microp.trace.time_breakdown import KINDS, StepClock, account
from microp.trace.timeline import Line, header, plain, timeline
