"""Launches the ranks, trains on each of them, and trains the whole model in one process as a reference.

::

    launch_ranks ─► run_rank ─► Trainer.step ─► Engine.step        one process per rank
    monolith                                                       the same model without a pipeline
    join ─► run_joined ─► run_rank                                 ranks on several hosts, which torchrun has started
"""

from microp.worker.failure import RankError
from microp.worker.hosts import HostsError, Joined, join, run_joined
from microp.worker.launch import launch_ranks
from microp.worker.profiling import measure_cases
from microp.worker.rank import run_rank
from microp.worker.threads import run_threads
from microp.worker.trainer import Trainer
