"""Slurm: the batch file of a job as text, and the four commands that submit jobs, look at them and end them.

::

    settings, what to run ── batch_file ──► text ── submit ──► id ── jobs, ended_as ──► its state
                                                              └─ cancel
"""

from microp.slurm.batch_file import BatchJob, batch_file
from microp.slurm.queue import ENDED, QueuedJob, RefusedError, UnreachableError, cancel, ended_as, jobs, submit

__all__ = [
    "ENDED",
    "BatchJob",
    "QueuedJob",
    "RefusedError",
    "UnreachableError",
    "batch_file",
    "cancel",
    "ended_as",
    "jobs",
    "submit",
]
