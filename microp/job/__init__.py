"""The job: everything that a rank is given, checked and computed once, before any process starts.

::

    settings ─┐
    schedule ─┼─► Job ──► every rank, as one picklable value
    partition ┘
"""

from microp.job.identity import LATER, NOT_ASKED, question_id, run_id
from microp.job.job import Job, Snapshot, Workload, unit_rows, workload_of
from microp.job.torch_support import torch_class, torch_problems
