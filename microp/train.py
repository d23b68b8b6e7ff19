"""One rank's life: build its stages, run the steps, write its rows.

::

    warm-up steps ─► measured steps ─► one step for memory
                     the last one's
                     spans are kept

A step::

    load the batch ─ barrier ─┤ run the actions ─ sum over replicas ─ optimizer ├─ barrier ─ row to disk
                              └─────────────────── step_ms ────────────────────┘
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from microp.comms import Comms
from microp.device import ActivationMeter, Device
from microp.engine import Boundary, Engine
from microp.limit import Limit
from microp.peer import TorchEngine
from microp.plan import Plan
from microp.records import RankRecorder, Row
from microp.reduction import under_way
from microp.schedule import Op, Schedule
from microp.stage import Batch, Stage
from microp.syncs import Sync
from microp.trace import StepTrace

MIB = 2**20


class Runner(Protocol):
    """What runs a step: an engine, or the limit that engines are compared with."""

    factor: float
    after_action: Callable[[], None] | None

    def step(self, number: int) -> StepTrace | None:
        """Run a loaded step."""


class Trainer:
    """One rank's stages, their optimizer and the engine that runs them.

    Args:
        plan: the same on every rank.
        comms: this rank's.
        device: this rank's.

    Raises:
        ConnectionError: another rank was given another plan.
    """

    def __init__(self, plan: Plan, comms: Comms, device: Device) -> None:
        self._plan = plan = plan.of(comms.replica)
        self._comms, self._device = comms, device
        self._check_fingerprint()
        held = plan.schedule.stages_of(comms.rank)
        self.stages = {stage: self._build(stage) for stage in held}
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=plan.learning_rate, fused=True)
        self.sync = self._open_sync()
        self.engines = {name: self._runner(name) for name in plan.engines}
        self.engine = self.engines[plan.engines[0]]
        self._windows = None
        if self._has_first or self._has_last:
            self._windows = plan.data.windows(plan.batch_size, plan.model.row_bytes, plan.seed)

    def _check_fingerprint(self) -> None:
        mine = self._plan.fingerprint()
        seen = torch.tensor([mine, -mine], device=self._device.torch_device)
        self._comms.all_reduce(seen, "max")
        if self._comms.across:
            self._comms.across.all_reduce(seen, "max")
        highest, negated_lowest = seen.tolist()
        if highest != -negated_lowest:
            raise ConnectionError("the ranks were given different configurations: use the same command on every host")

    def _build(self, stage: int) -> Stage:
        plan = self._plan
        layers = [plan.model.layer(index, plan.seed) for index in plan.partition.layers_of(stage)]
        loss = plan.model.loss if stage == plan.schedule.stages - 1 else None
        on_device = [layer.to(self._device.torch_device) for layer in layers]
        split = [microbatch for place, microbatch in plan.schedule.split if place == stage]
        return Stage(on_device, loss, plan.checkpointing, plan.schedule.chunks, split)

    def _open_sync(self) -> Sync:
        plan, layers = self._plan, {index: stage.layers for index, stage in self.stages.items()}
        if self._comms.across is None:
            return Sync(layers)
        split = {stage for stage, _ in plan.schedule.split}
        return plan.sync.open(layers, split, self._comms, self._device)

    def _runner(self, engine: str) -> Runner:
        """What runs the steps of an engine; all run the same stages."""
        plan, stages, comms, device = self._plan, self.stages, self._comms, self._device
        boundary = Boundary(plan.model.boundary, plan.model.torch_dtype)
        if engine == "limit":
            return Limit(plan.schedule, stages, boundary, plan.rows)
        if engine == "torch":
            return TorchEngine(plan.torch_schedule, stages, comms, device, boundary, plan.rows, plan.checkpointing)
        weights, last = plan.engine.batch_weights, self.sync.last
        return Engine(plan.schedule, stages, comms, device, boundary, plan.rows, weights, last)

    @property
    def _has_first(self) -> bool:
        return 0 in self.stages

    @property
    def _has_last(self) -> bool:
        return self._plan.schedule.stages - 1 in self.stages

    def load(self, step: int) -> None:
        """Make the step's batch, where it is needed, drop the last step's gradients, and meet."""
        self.sync.clear()
        inputs = targets = None
        if self._windows is not None:
            rows, replica = self._plan.rows, self._comms.replica
            window = self._windows(step).split(self._plan.shares)[replica].to(self._device.torch_device)
            inputs = window[:, :-1].split(rows) if self._has_first else None
            targets = window[:, 1:].split(rows) if self._has_last else None
        weights = [rows / self._plan.batch_size * self.sync.loss_scale for rows in self._plan.rows]
        first = self._comms.replica * self._plan.schedule.chunks
        for stage in self.stages.values():
            stage.load(Batch(step, inputs, targets, weights, first))
        self._comms.barrier()
        self._device.settle()

    def step(self, step: int, engine: str | None = None) -> Row:
        """Run one loaded step (by the first engine, if none is named) and the optimizer; what it took, as a row."""
        mark = self._device.mark
        overruns = self._device.overruns
        engine = engine or self._plan.engines[0]
        runner = self.engines[engine]
        began = mark()
        trace = runner.step(step)
        computed = mark()
        self.reductions = self.sync.finish()
        reduced = mark()
        if trace is not None:  # else the gradients are of made-up inputs
            self.optimizer.step()
        ended = mark()
        self._comms.barrier()  # nobody tidies up on a core that another still computes on
        began, computed, reduced, ended = self._device.read([began, computed, reduced, ended])
        recompute = sum(stage.recompute_ns for stage in self.stages.values())
        recompute = self._device.recompute_ns(self._plan.schedule.ranks[self._comms.rank], recompute)
        losses = [loss.item() for stage in self.stages.values() for loss in stage.losses]
        if trace is not None and engine == self._plan.engines[0]:
            self.trace = trace
        return {
            "step": step,
            "rank": self._comms.rank,
            "replica": self._comms.replica,
            "engine": engine,
            "sync": self.sync.name,
            "loss": sum(losses) / self.sync.loss_scale if self._has_last and trace is not None else None,
            "began_ns": began,
            "ended_ns": ended,
            "step_ms": (ended - began) / 1e6,
            "optimizer_ms": (ended - reduced) / 1e6,
            "all_reduce_ms": under_way(self.reductions) / 1e6,
            "exposed_ms": (reduced - computed) / 1e6,
            "reduced_bytes": self.sync.nbytes,
            "pipeline_ms": (computed - began) / 1e6 * runner.factor,
            **({} if trace is None else _pipeline_times(trace, self._plan.schedule)),
            "overruns": self._device.overruns - overruns,
            "recompute_ms": recompute / 1e6,
        }

    def _tensors(self) -> Iterator[Tensor]:
        """What is alive between two steps: weights, buckets, the optimizer's state, the loaded batch."""
        yield from self.sync.tensors()
        for stage in self.stages.values():
            yield from stage.tensors()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def memory_step(self, step: int) -> Row:
        """Run one loaded step under the meters: slower, and exact in bytes."""
        row: Row = {}
        stages = list(self.stages.values())
        meter = ActivationMeter(stages)

        def look() -> None:
            meter.look()
            for stage in stages:
                for tensor in stage.held():
                    tensor.detach()  # shows a meter of operations what came from another rank

        def metered() -> None:
            self.engine.after_action = look
            with meter:
                row.update(self.step(step))
            self.engine.after_action = None

        peak = self._device.peak_memory(self._tensors(), metered)
        return {
            **row,
            "peak_memory_mib": peak / MIB,
            "peak_activation_mib": meter.peak_bytes / MIB,
            "in_flight_peak": _whole(meter.peak_in_flight / len(stages)),
        }


def _whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _pipeline_times(trace: StepTrace, schedule: Schedule) -> Row:
    """What the spans of a rank's step add up to; mean times of an action by stage and op.

    A full backward on a stage that has split ones as well is an X.
    """
    lengths: dict[str, list[int]] = defaultdict(list)
    splits = {stage for stage, _ in schedule.split}
    for span in trace.spans:
        whole = span.op is Op.B and span.stage in splits and (span.stage, span.microbatch) not in schedule.split
        lengths[f"{span.stage}{'X' if whole else span.op}"].append(span.end - span.start)
    return {
        "compute_ms": sum(map(sum, lengths.values())) / 1e6,
        "wait_ms": sum(span.start - asked for span, asked in zip(trace.spans, trace.asked, strict=True)) / 1e6,
        "first_start_ns": trace.spans[0].start,
        "last_end_ns": trace.spans[-1].end,
        "action_ms": {name: sum(values) / len(values) / 1e6 for name, values in lengths.items()},
    }


def run_rank(plan: Plan, comms: Comms, local_rank: int, attempt: Path) -> None:
    """Train for the plan's steps, writing this rank's files into `attempt`.

    Raises:
        Exception: whatever went wrong, after `error.rank<r>.json` has been written.
    """
    recorder = RankRecorder(attempt, comms.number, comms.replica)
    plan = plan.of(comms.replica)
    try:
        device = plan.device.open(local_rank, plan.workload)
        trainer = Trainer(plan, comms, device)
        _train(plan, trainer, recorder)
        comms.barrier()
    except Exception as error:
        recorder.error(_error_row(error, comms))
        raise
    finally:
        recorder.close()


def _train(plan: Plan, trainer: Trainer, recorder: RankRecorder) -> None:
    gc.collect()
    gc.disable()  # a collection inside a step would be measured
    try:
        traced = max(step for step, phase, engine in plan.phases() if phase == "measured" and engine == plan.engines[0])
        for step, phase, engine in plan.phases():
            trainer.load(step)
            row = trainer.memory_step(step) if phase == "memory" else trainer.step(step, engine)
            recorder.step({"phase": phase, **row})
            if step == traced:
                recorder.spans(step, trainer.trace.spans, trainer.trace.asked)
                recorder.reductions(step, trainer.reductions)
            gc.collect(1)
    finally:
        gc.enable()


def _error_row(error: Exception, comms: Comms) -> Row:
    return {
        "rank": comms.rank,
        "replica": comms.replica,
        "number": comms.number,
        "message": str(error) or type(error).__name__,
        "lost_peer": isinstance(error.__cause__ or error, ConnectionError | TimeoutError),
        "time": time.time(),
        "traceback": traceback.format_exc(),
    }
