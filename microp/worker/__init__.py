"""Launches the ranks, trains on each of them, and trains the whole model in one process as a reference.

::

    launch_ranks ─► run_rank ─► Trainer.step ─► Engine.step        one process per rank
    monolith                                                       the same model without a pipeline
    join, gather_rows                                              ranks on several hosts
"""

from microp.worker.failure import RankError, error_of
from microp.worker.first_not_finite import DivergedRunError, Start, explained
from microp.worker.joined import gather_rows, run_joined
from microp.worker.launch import LOOPBACK_INTERFACE, connect, end_with_parent, keep_freed_memory, launch_ranks
from microp.worker.meeting import HostsError, Joined, join
from microp.worker.profiling import record_cases
from microp.worker.rank import run_rank
from microp.worker.row_times import record_rows
from microp.worker.threads import run_threads
from microp.worker.trainer import Trainer
