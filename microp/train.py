"""One rank's life: build its stages, run the steps, write its rows.

::

    warm-up steps ─► measured steps ─► one step for memory
                     the last one's
                     spans are kept

A step::

    load the batch ─ barrier ─┤ run the actions ─ optimizer ├─ row to disk
                              └────── step_ms ─────────────┘
"""

from __future__ import annotations

import gc
import hashlib
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from microp.comms import Comms
from microp.data import Data
from microp.device import ActivationMeter, Device, DeviceSettings, Workload
from microp.engine import Boundary, Engine
from microp.model import Model
from microp.partition import Partition, spread
from microp.records import RankRecorder, Row
from microp.schedule import Op, Schedule
from microp.schedule_io import to_text
from microp.stage import Batch, Checkpointing, Stage
from microp.trace import StepTrace

MIB = 2**20


@dataclass(frozen=True)
class Plan:
    """All that a rank needs to know: what the configuration says, checked and worked out.

    Raises:
        ValueError: the partition fits neither the model nor the schedule.
    """

    run_id: str
    schedule: Schedule
    partition: Partition
    model: Model
    checkpointing: Checkpointing
    data: Data
    device: DeviceSettings
    backend: str
    timeout_s: float
    batch_size: int
    steps: int
    warmup_steps: int
    learning_rate: float
    seed: int

    def __post_init__(self) -> None:
        if len(self.partition.sizes) != self.schedule.stages or self.partition.layers != self.model.layers:
            raise ValueError(
                f"partition {self.partition.sizes} does not cut {self.model.layers} layers "
                f"into the schedule's {self.schedule.stages} stages"
            )

    @property
    def ranks(self) -> int:
        return len(self.schedule.ranks)

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each microbatch: as even as can be."""
        return spread(self.batch_size, self.schedule.chunks)

    @property
    def workload(self) -> Workload:
        """What the plan asks of a device."""
        return Workload(self.schedule, self.partition.sizes, self.rows, self.checkpointing)

    def phases(self) -> Iterator[tuple[int, str]]:
        """(index, phase) of every step; phases are warmup, measured and memory."""
        counts = {"warmup": self.warmup_steps, "measured": self.steps, "memory": 1}
        names = (name for name, count in counts.items() for _ in range(count))
        return enumerate(names)

    def fingerprint(self) -> int:
        """A number that two ranks share only if they were given the same plan."""
        parts = (self.run_id, to_text(self.schedule), self.partition, self.model, self.checkpointing, self.data)
        numbers = (self.batch_size, self.steps, self.warmup_steps, self.learning_rate, self.seed)
        digest = hashlib.blake2b(repr((parts, numbers)).encode(), digest_size=6).digest()
        return int.from_bytes(digest)


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
        self._plan, self._comms, self._device = plan, comms, device
        self._check_fingerprint()
        held = plan.schedule.stages_of(comms.rank)
        self.stages = {stage: self._build(stage) for stage in held}
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=plan.learning_rate, fused=True)
        boundary = Boundary(plan.model.boundary, plan.model.torch_dtype)
        self.engine = Engine(plan.schedule, self.stages, comms, device, boundary, plan.rows)
        self._windows = None
        if self._has_first or self._has_last:
            self._windows = plan.data.windows(plan.batch_size, plan.model.row_bytes, plan.seed)

    def _check_fingerprint(self) -> None:
        mine = self._plan.fingerprint()
        seen = torch.tensor([mine, -mine], device=self._device.torch_device)
        highest, negated_lowest = self._comms.all_reduce(seen, "max").tolist()
        if highest != -negated_lowest:
            raise ConnectionError("the ranks were given different configurations: use the same command on every host")

    def _build(self, stage: int) -> Stage:
        plan = self._plan
        layers = [plan.model.layer(index, plan.seed) for index in plan.partition.layers_of(stage)]
        loss = plan.model.loss if stage == plan.schedule.stages - 1 else None
        on_device = [layer.to(self._device.torch_device) for layer in layers]
        split = [microbatch for place, microbatch in plan.schedule.split if place == stage]
        return Stage(on_device, loss, plan.checkpointing, plan.schedule.chunks, split)

    @property
    def _has_first(self) -> bool:
        return 0 in self.stages

    @property
    def _has_last(self) -> bool:
        return self._plan.schedule.stages - 1 in self.stages

    def load(self, step: int) -> None:
        """Make the step's batch, where it is needed, drop the last step's gradients, and meet."""
        self.optimizer.zero_grad()
        inputs = targets = None
        if self._windows is not None:
            window = self._windows(step).to(self._device.torch_device)
            rows = self._plan.rows
            inputs = window[:, :-1].split(rows) if self._has_first else None
            targets = window[:, 1:].split(rows) if self._has_last else None
        weights = [rows / self._plan.batch_size for rows in self._plan.rows]
        for stage in self.stages.values():
            stage.load(Batch(step, inputs, targets, weights))
        self._comms.barrier()

    def step(self, step: int) -> Row:
        """Run one loaded step and the optimizer; what it took, as a row."""
        mark = self._device.mark
        overruns = self._device.overruns
        began = mark()
        trace = self.engine.step(step)
        computed = mark()
        self.optimizer.step()
        ended = mark()
        self.trace = trace
        began, computed, ended = self._device.read([began, computed, ended])
        recompute = sum(stage.recompute_ns for stage in self.stages.values())
        recompute = self._device.recompute_ns(self._plan.schedule.ranks[self._comms.rank], recompute)
        losses = [loss.item() for stage in self.stages.values() for loss in stage.losses]
        return {
            "step": step,
            "rank": self._comms.rank,
            "loss": sum(losses) if self._has_last else None,
            "began_ns": began,
            "ended_ns": ended,
            "step_ms": (ended - began) / 1e6,
            "optimizer_ms": (ended - computed) / 1e6,
            **_pipeline_times(trace, self._plan.schedule),
            "overruns": self._device.overruns - overruns,
            "recompute_ms": recompute / 1e6,
        }

    def _tensors(self) -> Iterator[Tensor]:
        """What is alive between two steps: weights, the optimizer's state, the loaded batch."""
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
    recorder = RankRecorder(attempt, comms.rank)
    try:
        device = plan.device.open(local_rank, plan.workload)
        trainer = Trainer(plan, comms, device)
        _train(plan, trainer, recorder)
        comms.barrier()
    except Exception as error:
        recorder.error(_error_row(error, comms.rank))
        raise
    finally:
        recorder.close()


def _train(plan: Plan, trainer: Trainer, recorder: RankRecorder) -> None:
    gc.collect()
    gc.disable()  # a collection inside a step would be measured
    try:
        for step, phase in plan.phases():
            trainer.load(step)
            row = trainer.memory_step(step) if phase == "memory" else trainer.step(step)
            recorder.step({"phase": phase, **row})
            if step == plan.warmup_steps + plan.steps - 1:
                recorder.spans(step, trainer.trace.spans, trainer.trace.asked)
            gc.collect(1)
    finally:
        gc.enable()


def _error_row(error: Exception, rank: int) -> Row:
    return {
        "rank": rank,
        "message": str(error) or type(error).__name__,
        "lost_peer": isinstance(error.__cause__ or error, ConnectionError | TimeoutError),
        "time": time.time(),
        "traceback": traceback.format_exc(),
    }
