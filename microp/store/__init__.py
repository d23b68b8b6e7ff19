"""Writes and reads what runs record: folders, rows, summaries, statistics over launches, and a mirror in W&B.

::

    ranks ── RankRecorder ──► outputs/runs/... ── summarise ──► summary.json ── mirror ──► W&B
                              outputs/runs, outputs/sweeps ── load_runs, Store ──► frames

pandas and wandb are imported only where they are used, because a rank needs neither.
"""

from microp.store.frames import (
    Plan,
    Point,
    Store,
    command,
    finished_runs,
    load_runs,
    load_steps,
    read_plan,
    read_plans,
    records,
    spans_frame,
    worst_rank_mib,
)
from microp.store.recorder import RankRecorder, new_attempt, write_json, write_schedule
from microp.store.records import (
    SCHEMA_VERSION,
    RecordError,
    Row,
    attempts,
    read_config,
    read_env,
    read_errors,
    read_json,
    read_reductions,
    read_rows,
    read_schedule,
    read_spans,
    read_status,
    read_summary,
)
from microp.store.statistics import LAUNCH, WIDE_FRACTION, interval, least_squares, over_launches, paired
from microp.store.summary import step_clock, summarise
from microp.store.wandb_mirror import mirror, take_agent

__all__ = [
    "LAUNCH",
    "SCHEMA_VERSION",
    "WIDE_FRACTION",
    "Plan",
    "Point",
    "RankRecorder",
    "RecordError",
    "Row",
    "Store",
    "attempts",
    "command",
    "finished_runs",
    "interval",
    "least_squares",
    "load_runs",
    "load_steps",
    "mirror",
    "new_attempt",
    "over_launches",
    "paired",
    "read_config",
    "read_env",
    "read_errors",
    "read_json",
    "read_plan",
    "read_plans",
    "read_reductions",
    "read_rows",
    "read_schedule",
    "read_spans",
    "read_status",
    "read_summary",
    "records",
    "spans_frame",
    "step_clock",
    "summarise",
    "take_agent",
    "worst_rank_mib",
    "write_json",
    "write_schedule",
]
