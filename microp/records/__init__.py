"""Run folders: writes and reads what a run leaves on disk, and sums it up.

::

    ranks ── RankRecorder ──► outputs/runs/... ── summarise ──► summary.json

A rank imports it, so it imports neither pandas nor wandb.
"""

from microp.records.disturbance import (
    DISTURBANCES,
    FEW_QUEUED,
    MOSTLY_WORK,
    OVER_NOMINAL,
    Disturbance,
    disturbances,
    load_average,
)
from microp.records.files import WriteError, full_disk, in_a_line, in_words, unwritable, write_text
from microp.records.lock import LockedError, hold, owner_of, this_process
from microp.records.profiles import ProfileError, find_profile, read_profile, write_profile
from microp.records.recorder import (
    RankRecorder,
    last_attempt,
    new_attempt,
    shift_moments,
    write_json,
    write_schedule,
)
from microp.records.records import (
    DIVERGED,
    KILLED,
    PEAKS,
    ROWS,
    RUNNING,
    SCHEMA_VERSION,
    RecordError,
    Row,
    StepRow,
    attempts,
    check_attempt,
    number_of,
    rank_of,
    read_config,
    read_env,
    read_errors,
    read_json,
    read_reductions,
    read_rows,
    read_schedule,
    read_some_rows,
    read_spans,
    read_status,
    read_summary,
    row_files,
)
from microp.records.replays import TracedStep, read_traced_step, traced_schedule
from microp.records.snapshots import finished
from microp.records.statistics import LAUNCH, RANGE_UP_TO, WIDE_FRACTION, least_squares, over_launches, paired
from microp.records.summary import HOSTS, clocks_text, summarise
from microp.records.sweep_plan import Plan, Point, SweepPlan, claim_folder, command, plan_in, read_plans
