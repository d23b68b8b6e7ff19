"""Launches the ranks, trains on each of them, and trains the whole model in one process as a reference.

::

    launch_ranks ─► run_rank ─► Trainer.step ─► Engine.step        one process per rank
    monolith                                                       the same model without a pipeline
    MirrorProcess ─► store.mirror                                  W&B, while the next ranks start
"""

from microp.worker import forkserver_setup, monolith  # noqa: F401 (first: it prepares the process that forks ranks)
from microp.worker.failure import RankError
from microp.worker.joined import gather_rows, run_joined, why_failed
from microp.worker.launch import launch_ranks
from microp.worker.meeting import HostsError, Joined, join
from microp.worker.mirror_process import MirrorProcess
from microp.worker.profiling import record_cases
from microp.worker.rank import run_rank
from microp.worker.row_times import record_rows
from microp.worker.termination import when_terminated
from microp.worker.threads import run_threads
from microp.worker.trainer import Trainer

__all__ = [
    "HostsError",
    "Joined",
    "MirrorProcess",
    "RankError",
    "Trainer",
    "gather_rows",
    "join",
    "launch_ranks",
    "monolith",
    "record_cases",
    "record_rows",
    "run_joined",
    "run_rank",
    "run_threads",
    "when_terminated",
    "why_failed",
]
