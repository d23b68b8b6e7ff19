"""What a step cannot be faster than: one rank's compute alone, and the fill and drain of a pipeline.

::

    rank r alone   |F0|F1|F2|F3|B0|B1|B2|B3|        C = the time of it, nobody is waited for
    limit          C · (M + K - 1) / M              GPipe's and 1F1B's makespan of equal stages

All ranks run theirs at the same time, as they do in a pipeline, since they share the
memory's bandwidth. Nothing is sent and nothing is traced; a backward is never split. Schedules with
a smaller bubble than GPipe's can come out below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from microp.engine import Boundary
from microp.schedule import Schedule
from microp.stage import Stage


class Limit:
    """One rank's F and B of all microbatches, on inputs of its own.

    Attributes:
        factor: what the time of a step is multiplied by.
    """

    def __init__(
        self, schedule: Schedule, stages: Mapping[int, Stage], boundary: Boundary, rows: Sequence[int]
    ) -> None:
        self.after_action: Callable[[], None] | None = None  # nothing looks on
        self._stages, self._last, self._chunks = stages, schedule.stages - 1, schedule.chunks
        self._twins = {index: stage.unsplit() for index, stage in stages.items()}
        self._tensors = [torch.randn(boundary.shape(count), dtype=boundary.dtype) for count in rows]
        self.factor = (schedule.chunks + len(schedule.ranks) - 1) / schedule.chunks

    def step(self, number: int) -> None:
        """Run them once: all forwards, then all backwards. The stages have been loaded."""
        del number
        for index, twin in self._twins.items():
            twin.load(self._stages[index].batch)
            for microbatch in range(self._chunks):
                twin.forward(microbatch, None if index == 0 else self._tensors[microbatch])
        for index, twin in reversed(self._twins.items()):
            for microbatch in range(self._chunks):
                twin.backward(microbatch, None if index == self._last else self._tensors[microbatch])
