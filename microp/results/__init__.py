"""Recorded runs as frames: selected, compared, and joined with their sweeps.

::

    outputs/runs, outputs/sweeps ── load_runs, Store ──► frames
                                 ── list_runs, select ──► a frame ── pair_questions ──► comparisons

pandas is imported only where it is used.
"""

from microp.results.comparison import compare, launch_times
from microp.results.frames import Store, finished_runs, load_runs, load_steps, records, spans_frame, worst_rank_mib
from microp.results.question_pairs import FIGURES, Pairing, pair_questions, telling_columns
from microp.results.run_rows import PointRow, read_point, recorded_point, write_table
from microp.results.selection import (
    Group,
    Runs,
    SelectionError,
    column_named,
    find,
    is_missing,
    nothing_found,
    read_groups,
    shown,
    spelling,
    split_outside_brackets,
    text_of,
    when,
)
from microp.results.swept import asked, parts_of, same, swept, varied
from microp.results.verdicts import ALIKE, HOW, NOISY, doubt, noise, one_process, uncounted, unscaled, verdicts
