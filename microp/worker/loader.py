"""Loads a rank's part of each batch.

::

    step 7   draw ─► one tensor that stays ─┬─ inputs   │ 0 │ 1 │ 2 │ 3 │    one view per microbatch,
                                            └─ targets  │ 0 │ 1 │ 2 │ 3 │    cut once and not in every step
"""

from __future__ import annotations

import torch

from microp.job import Job
from microp.model import open_data


class BatchLoader:
    """Loads the rows of one replica, by its job (`Job.of`) and index.

    Attributes:
        inputs: (rows, context) int64 per microbatch, of the step that was loaded last.
        targets: the same, one token later.
    """

    def __init__(self, job: Job, replica: int, device: torch.device) -> None:
        self._windows = open_data(job.data, job.batch_size, job.model.row_bytes, job.seed)
        before, count = sum(job.shares[:replica]), job.shares[replica]
        self._rows = slice(before, before + count)
        self._window = torch.empty(count, job.model.row_bytes + 1, dtype=torch.int64, device=device)
        self.inputs = self._window[:, :-1].split(job.rows)
        self.targets = self._window[:, 1:].split(job.rows)

    def load(self, step: int) -> None:
        """Load the batch of a step in place of the last one."""
        self._window.copy_(self._windows(step)[self._rows])
