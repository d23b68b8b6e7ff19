"""PyTorch's own pipeline runtime in the engine's place: the same stages, batches and records.

::

    schedule "1f1b" ─► torch.distributed.pipelining.Schedule1F1B
    stage           ─► PipelineStage ── forward, backward: a span each, on the device's clock

torch sends and receives over the process group (gloo or NCCL) in its own way; it decides
the order, and what is recorded is the order in which it ran the actions. The loss is the
weighted one of `Stage`, so that the gradients are the batch's and nothing is scaled after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from microp.comms import Comms
from microp.device import Device
from microp.engine import ActionError, Boundary
from microp.model import Dropout
from microp.schedule import Action, Op, Schedule
from microp.schedules import one_f_one_b
from microp.stage import Checkpointing, Stage
from microp.trace import StepTrace

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "breadth_first": "ScheduleLoopedBFS",
    "zb_v": "ScheduleZBVZeroBubble",
}
SINGLE = ("gpipe", "1f1b")  # one stage a rank
NEAREST = ("zb_h1", "zb_h2", "eager_1f1b")  # beside these torch's 1F1B is run in a comparison


def problems(schedule: Schedule, checkpointing: Checkpointing, rows: Sequence[int]) -> list[str]:
    """Why torch cannot run this, a sentence each."""
    found = []
    if schedule.name not in SCHEDULES:
        found.append(f"engine=torch has no schedule {schedule.name!r}: use one of {', '.join(SCHEDULES)}")
    if len(schedule.ranks) < 2:
        found.append("engine=torch needs a pipeline of ranks=2 or more")
    if schedule.name == "1f1b" and schedule.chunks < schedule.stages:
        found.append(
            f"engine=torch runs 1f1b with as many microbatches as stages or more: chunks={schedule.chunks} "
            f"for {schedule.stages} stages is fewer"
        )
    if len(set(rows)) > 1:
        found.append(f"engine=torch needs equal microbatches: {sum(rows)} rows in chunks={len(rows)} are not")
    if checkpointing.spare_last:
        found.append(f"engine=torch treats all microbatches alike: checkpointing={checkpointing.name} does not")
    return found


def beside(schedule: Schedule) -> Schedule:
    """What torch runs in a comparison with `schedule`: the same, or its 1F1B where it has none so near."""
    if schedule.name in NEAREST:
        return one_f_one_b(len(schedule.ranks), schedule.chunks)
    return schedule


class TorchEngine:
    """One rank's part of a step, run by torch.

    Args:
        schedule: one of `SCHEDULES`.
        stages: the stages this rank holds, by index; their layers are run, their batch is used.
        comms: this rank's, over a process group.
        device: this rank's clock.
        boundary: what travels between stages.
        rows: the rows of each microbatch, all equal.
        checkpointing: what is recomputed.
    """

    factor = 1.0

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, Stage],
        comms: Comms,
        device: Device,
        boundary: Boundary,
        rows: Sequence[int],
        checkpointing: Checkpointing,
    ) -> None:
        self._schedule, self._stages, self._checkpointing = schedule, stages, checkpointing
        self._rank, self._device, self._boundary, self._rows = comms.rank, device, boundary, rows[0]
        self._row: list[Action] = []
        self._marks: list[Any] = []
        self._first, self._last = stages.get(0), stages.get(schedule.stages - 1)
        self.after_action: Callable[[], None] | None = None

    @cached_property
    def _runtime(self) -> Any:
        """torch's schedule over torch's stages; made in the first step, when there is a batch to take shapes from."""
        from torch.distributed import pipelining  # half a second that the other engine does without

        kind: Any = getattr(pipelining, SCHEDULES[self._schedule.name])
        timed = _timed_stage(pipelining.PipelineStage)
        held = [self._stage(timed, index, stage) for index, stage in self._stages.items()]
        stages = held[0] if self._schedule.name in SINGLE else held
        return kind(stages, self._schedule.chunks, loss_fn=self._loss, scale_grads=False)

    def _stage(self, timed: Any, index: int, stage: Stage) -> Any:
        """torch's stage; it takes shapes and types from two tensors, and so need not ask its neighbours in a step."""
        shape, dtype = self._boundary.shape(self._rows), self._boundary.dtype
        between = torch.empty(shape, dtype=dtype, requires_grad=True)
        example = stage.batch.inputs[0] if index == 0 and stage.batch.inputs is not None else between
        layers = _Layers(stage, self._checkpointing)
        output = between if index < self._schedule.stages - 1 else layers(example).detach()
        count, device = self._schedule.stages, self._device.torch_device
        return timed(partial(self._timed, index), layers, index, count, device, example, output)

    def step(self, number: int) -> StepTrace:
        """Run this rank's actions once. The stages have been loaded with the step's batch.

        Raises:
            ActionError: something failed in torch's runtime.
        """
        self._row, self._marks = [], []
        inputs = [torch.cat(list(self._first.batch.inputs or ()))] if self._first is not None else []
        targets = None
        if self._last is not None:
            self._last.losses = []
            targets = torch.cat(list(self._last.batch.targets or ()))
        try:
            self._runtime.step(*inputs, target=targets, return_outputs=False)
        except Exception as error:
            raise ActionError(f"rank {self._rank}, torch's runtime, step {number}: {error}") from error
        return StepTrace(self._rank, self._row, partial(self._device.read, self._marks))

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        assert self._last is not None
        loss = self._last.weighted_loss(output, target)
        self._last.losses.append(loss.detach())
        return loss

    def _timed(self, stage: int, op: Op, microbatch: int, call: Callable[[], Any]) -> Any:
        """Do one of torch's actions as one of the device's, between two marks."""
        action, mark = Action(op, stage, microbatch), self._device.mark
        run, _ = self._device.bind(action, lambda _microbatch, _x: call())
        asked = self._marks[-1] if self._marks else mark()
        start = mark()
        result = run(microbatch, None)
        self._row.append(action)
        self._marks += (asked, start, mark())
        if self.after_action is not None:
            self.after_action()
        return result


class _Layers(nn.Module):
    """A stage's layers as one module, recomputed by segments as the policy says."""

    def __init__(self, stage: Stage, checkpointing: Checkpointing) -> None:
        super().__init__()
        self.layers = stage.layers
        self._segments = [nn.Sequential(*layers) for layers in stage.segments] if checkpointing.segments else []
        self._dropouts = [module for module in self.layers.modules() if isinstance(module, Dropout)]
        self._stage = [stage]  # in a list: not a child

    def at(self, microbatch: int) -> None:
        """Say which microbatch the next forward is for."""
        for dropout in self._dropouts:
            dropout.at(self._stage[0].batch.step, microbatch)

    def forward(self, x: Tensor) -> Tensor:
        if not self._segments:
            for layer in self.layers:
                x = layer(x)
        for segment in self._segments:
            x = checkpoint(segment, x, use_reentrant=False, preserve_rng_state=False)
        return x


def _timed_stage(base: type) -> Any:
    """torch's PipelineStage with its actions timed; a function, as torch's class is imported late."""

    class Timed(base):  # type: ignore[misc]
        def __init__(self, timed: Callable[..., Any], module: _Layers, *args: Any) -> None:
            super().__init__(module, *args)
            self._timed = timed

        def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.submod.at(fwd_chunk_id)
            call = partial(super().forward_one_chunk, fwd_chunk_id, *args, **kwargs)
            return self._timed(Op.F, fwd_chunk_id, call)

        def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.submod.at(bwd_chunk_id)
            call = partial(super().backward_one_chunk, bwd_chunk_id, *args, **kwargs)
            return self._timed(Op.B, bwd_chunk_id, call)

        def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            call = partial(super().backward_weight_one_chunk, bwd_chunk_id, *args, **kwargs)
            return self._timed(Op.W, bwd_chunk_id, call)

    return Timed
