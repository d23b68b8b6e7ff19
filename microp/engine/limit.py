"""The limit of a step's speed: one rank's compute without waiting, plus the fill and the drain of a pipeline.

::

    rank r         |F0|F1|F2|F3|B0|B1|B2|B3|        C = the time of these actions, without waiting
    limit          C · (M + K - 1) / M              GPipe's and 1F1B's makespan with equal stages

All ranks compute at the same time, as in a pipeline, because they share the memory's bandwidth.
Nothing is sent or traced, and no backward is divided. A schedule with a smaller bubble than
GPipe's can be faster than this limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from microp.engine.engine import Boundary
from microp.model import Stage
from microp.schedule import Schedule


class Limit:
    """Runs one rank's F and B of all microbatches on random inputs.

    Args:
        schedule: the schedule, of which only M, K and the number of stages are used.
    """

    def __init__(
        self, schedule: Schedule, stages: Mapping[int, Stage], boundary: Boundary, rows: Sequence[int]
    ) -> None:
        self.after_action: Callable[[], None] | None = None  # required by `Runner`; never called
        self._stages, self._last, self._order = stages, schedule.stages - 1, range(schedule.units)
        slices = schedule.slices
        self._backwards = [unit - unit % slices + slices - 1 - unit % slices for unit in self._order]
        self._twins = {index: stage.unsplit() for index, stage in stages.items()}
        shape, dtype, device = boundary
        entering = {inside for index in stages for inside in (index, index + 1)}
        self._tensors = {  # what enters a stage, and as well the gradient of it
            stage: [torch.randn(shape(count, stage), dtype=dtype(stage), device=device) for count in rows]
            for stage in entering - {0, schedule.stages}
        }
        self.factor = (schedule.chunks + len(schedule.ranks) - 1) / schedule.chunks  # of the time of a step

    def step(self, number: int) -> None:
        """Run all forwards, then all backwards. The stages must hold the step's batch."""
        for index, twin in self._twins.items():
            twin.load(self._stages[index].batch)
            for microbatch in self._order:
                twin.forward(microbatch, None if index == 0 else self._tensors[index][microbatch])
        for index, twin in reversed(self._twins.items()):
            for microbatch in self._backwards:
                twin.backward(microbatch, None if index == self._last else self._tensors[index + 1][microbatch])
