"""PyTorch's pipeline runtime in place of microp's engine, with the same stages, batches and records.

::

    schedule "1f1b" ─► torch.distributed.pipelining.Schedule1F1B
    stage           ─► PipelineStage ── one span per forward and backward, on the device's clock

torch sends and receives over the process group (gloo or NCCL) and runs its own order, which is
the job's (`microp.job.torch_problems` refuses any other); the trace records what it ran. The loss is the
weighted loss of `Stage`, so the gradients are the batch's and need no scaling afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from microp.comms import PLACE, SINCE, Comms, Place, peer_error
from microp.device import Device
from microp.engine.engine import ActionError, Boundary, describe_failure
from microp.job import torch_class
from microp.model import Stage, random_parts
from microp.schedule import Action, Op, Schedule
from microp.settings import Checkpointing
from microp.trace import Actions, StepTrace


class TorchEngine:
    """One rank's part of a step, run by torch.

    Args:
        schedule: one that has a `torch_class`.
        planned: the order of the job, by which heartbeats count the actions; torch's own may differ.
        comms: this rank's transport, over a process group.
        rows: the number of rows of each microbatch; all must be equal.
    """

    factor = 1.0

    def __init__(
        self,
        schedule: Schedule,
        planned: Schedule,
        stages: Mapping[int, Stage],
        comms: Comms,
        device: Device,
        boundary: Boundary,
        rows: Sequence[int],
        checkpointing: Checkpointing,
    ) -> None:
        self._schedule, self._stages, self._checkpointing = schedule, stages, checkpointing
        self._rank, self._device, self._boundary, self._rows = comms.rank, device, boundary, rows[0]
        self._comms, self._planned, self._beat = comms, planned, comms.heartbeats.line(comms.world_rank)
        self._places = {action: 2 * index + 1 for index, action in enumerate(planned.ranks[comms.rank])}
        self._row: list[Action] = []
        self._ran = list(planned.ranks[comms.rank])  # the row of the step before
        self._actions = Actions.of([self._ran], comms.rank)
        self._marks: list[Any] = []
        self._first, self._last = stages.get(0), stages.get(schedule.stages - 1)
        self.after_action: Callable[[], None] | None = None

    @cached_property
    def _runtime(self) -> Any:
        """torch's schedule object with torch's stages; made in the first step, when a batch gives the shapes."""
        from torch.distributed import pipelining  # imported late: it takes half a second, and only this engine needs it

        kind: Any = getattr(pipelining, torch_class(self._schedule) or "")
        timed = _timed_stage(pipelining.PipelineStage)
        held = [self._stage(timed, index, stage) for index, stage in self._stages.items()]
        stages = held[0] if issubclass(kind, pipelining.schedules.PipelineScheduleSingle) else held
        return kind(stages, self._schedule.chunks, loss_fn=self._loss, scale_grads=False)

    def _stage(self, timed: Any, index: int, stage: Stage) -> Any:
        """Return torch's stage; two example tensors give it shapes and types, so that it need not exchange them."""
        first, last = index == 0, index == self._schedule.stages - 1
        example = stage.batch.inputs[0] if first and stage.batch.inputs is not None else self._entering(index)
        layers = _Layers(stage, self._checkpointing)
        output = layers(example).detach() if last else self._entering(index + 1)
        count, device = self._schedule.stages, self._device.torch_device
        return timed(partial(self._timed, index), layers, index, count, device, example, output)

    def _entering(self, stage: int) -> Tensor:
        boundary = self._boundary
        shape, dtype = boundary.shape(self._rows, stage), boundary.dtype(stage)
        return torch.empty(shape, dtype=dtype, device=boundary.device, requires_grad=True)

    def step(self, number: int) -> StepTrace:
        """Run this rank's actions once; return their trace. The stages must hold the step's batch.

        Raises:
            ActionError: torch's runtime raised an error.
        """
        self._row, self._marks = [], []
        inputs = [torch.cat(list(self._first.batch.inputs or ()))] if self._first is not None else []
        targets = None
        if self._last is not None:
            self._last.losses = {}
            targets = torch.cat(list(self._last.batch.targets or ()))
        self._at(Place.RUNTIME)
        try:
            self._runtime.step(*inputs, target=targets, return_outputs=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a layer may be the user's own, and exit
            cause = self._cause(error)
            raise ActionError(describe_failure(self._comms, self._planned, cause, number)) from cause
        if self._row != self._ran:
            self._ran, self._actions = self._row, Actions.of([self._row], self._rank)
        return StepTrace(self._actions, self._marks, self._device.read)

    def _at(self, place: int) -> None:
        self._beat[PLACE], self._beat[SINCE] = place, perf_counter_ns()

    def _cause(self, error: BaseException) -> BaseException:
        """Return the error that torch's runtime has wrapped; one of its transfers as `Pending.wait` raises it."""
        while error.__cause__ is not None:
            error = error.__cause__
        if self._beat[PLACE] == Place.RUNTIME and ("imed out" in str(error) or ".cc:" in str(error)):
            return peer_error(error, self._comms.timeout_s, "another rank")
        return error

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        assert self._last is not None
        return self._last.weighted_loss(output, target)

    def _timed(self, stage: int, op: Op, microbatch: int, call: Callable[[], Any]) -> Any:
        """Run one of torch's actions on the device, record its marks, and return its result."""
        action, mark = Action(op, stage, microbatch), self._device.mark
        run, _ = self._device.bind(action, lambda _microbatch, _x: call())
        wait_start = self._marks[-1] if self._marks else mark()
        self._at(self._places.get(action, Place.RUNTIME))
        start = mark()
        result = run(microbatch, None)
        self._at(Place.RUNTIME)
        self._row.append(action)
        self._marks += (wait_start, start, mark())
        if self.after_action is not None:
            self.after_action()
        return result


class _Layers(nn.Module):
    """A stage's layers as one module, whose segments are recomputed according to the policy."""

    def __init__(self, stage: Stage, checkpointing: Checkpointing) -> None:
        super().__init__()
        self.layers = stage.layers
        self._segments = [nn.Sequential(*layers) for layers in stage.segments] if checkpointing.segments else []
        self._random = list(random_parts(self.layers))
        self._stage = [stage]  # in a list, so that torch does not register it as a submodule

    def at(self, microbatch: int) -> None:
        """Set the microbatch of the next forward."""
        for part in self._random:
            part.at(self._stage[0].batch.step, microbatch)

    def forward(self, x: Tensor) -> Tensor:
        with self._stage[0].autocast:
            if not self._segments:
                for layer in self.layers:
                    x = layer(x)
            for segment in self._segments:
                x = checkpoint(segment, x, use_reentrant=False, preserve_rng_state=False)
        return x.contiguous()  # gloo sends one piece of memory


def _timed_stage(base: type) -> Any:
    """Return a subclass of torch's PipelineStage that times its actions; made here because `base` is imported late."""

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
            return self._timed(Op.B if kwargs.get("full_backward", True) else Op.I, bwd_chunk_id, call)

        def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            call = partial(super().backward_weight_one_chunk, bwd_chunk_id, *args, **kwargs)
            return self._timed(Op.W, bwd_chunk_id, call)

    return Timed
