"""Writes and reads what runs record: folders, rows, summaries, statistics over launches, and a mirror in W&B.

::

    ranks ── RankRecorder ──► outputs/runs/... ── summarise ──► summary.json ── mirror ──► W&B
                              outputs/runs, outputs/sweeps ── load_runs, Store ──► frames
                                              ── list_runs, select ──► rows ── pair_questions ──► comparisons

pandas and wandb are imported only where they are used, because a rank needs neither.
"""

from microp.store.comparison import Comparison, Verdict, compare, launch_times
from microp.store.damage import check_attempt, checksums
from microp.store.disturbance import DISTURBANCES, Disturbance, disturbances, load_average
from microp.store.durations import run_seconds
from microp.store.files import Reserve, WriteError, full_disk, in_a_line, in_words, unwritable, write_text
from microp.store.frames import (
    Store,
    finished_runs,
    load_runs,
    load_steps,
    records,
    spans_frame,
    worst_rank_mib,
)
from microp.store.lock import LockedError, Owner, hold, owner_of
from microp.store.owner import this_process
from microp.store.plans import Plan, Point, command, read_plan, read_plans
from microp.store.profiles import ProfileError, find_profile, read_profile, write_profile
from microp.store.question_pairs import (
    FIGURES,
    Figure,
    FigurePair,
    Pairing,
    QuestionPair,
    compare_figure,
    environment_columns,
    pair_questions,
    tell_apart,
    telling_columns,
)
from microp.store.recorder import RankRecorder, as_json, new_attempt, room_needed, write_json, write_schedule
from microp.store.records import (
    DIVERGED,
    KILLED,
    RUNNING,
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
    row_files,
)
from microp.store.selection import (
    Filter,
    SelectionError,
    column_named,
    columns_of,
    flatten,
    is_missing,
    list_attempts,
    list_runs,
    read_filters,
    select,
    shown,
    size_of,
    spelling,
    split_outside_brackets,
    text_of,
    when,
)
from microp.store.statistics import LAUNCH, RANGE_UP_TO, WIDE_FRACTION, interval, least_squares, over_launches, paired
from microp.store.summary import step_clock, summarise
from microp.store.sweep_plan import SweepPlan, claim_folder, plan_in
from microp.store.tidy import Belongings, archive, belongings, is_running, remove
from microp.store.traced_step import TracedStep, read_traced_step
from microp.store.wandb_environment import take_agent
from microp.store.wandb_follower import Follower
from microp.store.wandb_mirror import mirror

__all__ = [
    "DISTURBANCES",
    "DIVERGED",
    "FIGURES",
    "KILLED",
    "LAUNCH",
    "RANGE_UP_TO",
    "RUNNING",
    "SCHEMA_VERSION",
    "WIDE_FRACTION",
    "Belongings",
    "Comparison",
    "Disturbance",
    "Figure",
    "FigurePair",
    "Filter",
    "Follower",
    "LockedError",
    "Owner",
    "Pairing",
    "Plan",
    "Point",
    "ProfileError",
    "QuestionPair",
    "RankRecorder",
    "RecordError",
    "Reserve",
    "Row",
    "SelectionError",
    "Store",
    "SweepPlan",
    "TracedStep",
    "Verdict",
    "WriteError",
    "archive",
    "as_json",
    "attempts",
    "belongings",
    "check_attempt",
    "checksums",
    "claim_folder",
    "column_named",
    "columns_of",
    "command",
    "compare",
    "compare_figure",
    "disturbances",
    "environment_columns",
    "find_profile",
    "finished_runs",
    "flatten",
    "full_disk",
    "hold",
    "in_a_line",
    "in_words",
    "interval",
    "is_missing",
    "is_running",
    "launch_times",
    "least_squares",
    "list_attempts",
    "list_runs",
    "load_average",
    "load_runs",
    "load_steps",
    "mirror",
    "new_attempt",
    "over_launches",
    "owner_of",
    "pair_questions",
    "paired",
    "plan_in",
    "read_config",
    "read_env",
    "read_errors",
    "read_filters",
    "read_json",
    "read_plan",
    "read_plans",
    "read_profile",
    "read_reductions",
    "read_rows",
    "read_schedule",
    "read_spans",
    "read_status",
    "read_summary",
    "read_traced_step",
    "records",
    "remove",
    "room_needed",
    "row_files",
    "run_seconds",
    "select",
    "shown",
    "size_of",
    "spans_frame",
    "spelling",
    "split_outside_brackets",
    "step_clock",
    "summarise",
    "take_agent",
    "tell_apart",
    "telling_columns",
    "text_of",
    "this_process",
    "unwritable",
    "when",
    "worst_rank_mib",
    "write_json",
    "write_profile",
    "write_schedule",
    "write_text",
]
