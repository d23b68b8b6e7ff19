"""Writes and reads what runs record: folders, rows, summaries, statistics over launches, and a mirror in W&B.

::

    ranks ── RankRecorder ──► outputs/runs/... ── summarise ──► summary.json ── mirror ──► W&B
                              outputs/runs, outputs/sweeps ── load_runs, Store ──► frames
                                              ── list_runs, select ──► a frame ── pair_questions ──► comparisons

pandas and wandb are imported only where they are used, because a rank needs neither.
"""

from microp.store.comparison import Comparison, compare, launch_times
from microp.store.disturbance import DISTURBANCES, Disturbance, disturbances, load_average
from microp.store.files import AGAIN, WriteError, full_disk, in_a_line, in_words, unwritable, write_text
from microp.store.frames import Store, finished_runs, load_runs, load_steps, records, spans_frame, worst_rank_mib
from microp.store.lock import LockedError, has_gone, hold, owner_of, this_process
from microp.store.profiles import ProfileError, find_profile, read_profile, write_profile
from microp.store.question_pairs import FIGURES, Pairing, pair_questions
from microp.store.recorder import (
    RankRecorder,
    last_attempt,
    new_attempt,
    room_needed,
    shift_moments,
    write_json,
    write_schedule,
)
from microp.store.records import (
    DIVERGED,
    KILLED,
    ROWS,
    RUNNING,
    SCHEMA_VERSION,
    RecordError,
    Row,
    StepRow,
    attempts,
    check_attempt,
    flatten,
    number_of,
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
    run_seconds,
)
from microp.store.run_rows import PointRow, read_point, write_table
from microp.store.selection import (
    Filter,
    Group,
    Runs,
    SelectionError,
    column_named,
    find,
    is_missing,
    list_runs,
    nothing_found,
    read_filters,
    read_groups,
    select,
    shown,
    size_of,
    spelling,
    split_outside_brackets,
    text_of,
    when,
)
from microp.store.statistics import LAUNCH, RANGE_UP_TO, WIDE_FRACTION, interval, least_squares, over_launches, paired
from microp.store.summary import HOSTS, clocks_text, own_limits_ms, step_clock, summarise
from microp.store.sweep_plan import Plan, SweepPlan, claim_folder, command, plan_in, read_plan, read_plans
from microp.store.swept import differing, same, swept, varied
from microp.store.tidy import Belongings, belongings, is_running, remove
from microp.store.traced_step import TracedStep, read_traced_step
from microp.store.training_data import changed_between, changed_since, changed_while
from microp.store.verdicts import verdicts
from microp.store.wandb_files import take_agent
from microp.store.wandb_mirror import mirror
