"""One rank's stages, optimizer and engines; runs a step from the loaded batch to its row.

::

    load the batch ─ barrier ─┤ run the actions ─ sum gradients ─ optimizer ├─ barrier ─ the row
                              └───────────────── step_ms ──────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from microp.comms import Comms, Place
from microp.device import ActivationMeter, open_device
from microp.engine import Boundary, Engine, Limit, Runner, TorchEngine
from microp.job import Job
from microp.model import Batch, Stage, build_model, generator_states, open_data
from microp.records import StepRow
from microp.replicas import open_sync
from microp.schedule import Schedule
from microp.settings import OwnSettings
from microp.simulator import kind_of
from microp.system import MIB
from microp.trace import Actions, StepTrace, time_reducing
from microp.worker.compiling import compile_stages
from microp.worker.equal_weights import check_equal_weights
from microp.worker.optimizer import open_optimizer, set_rate
from microp.worker.tied_gradients import TiedGradients


class Trainer:
    """One rank's stages, their optimizer and the engines that run them.

    Raises:
        ValueError: another rank has made other weights.
    """

    stage_type = Stage

    def __init__(self, job: Job, comms: Comms, local_rank: int = 0) -> None:
        self._job = job = job.of(comms.replica)
        self._comms = comms
        self._at = partial(comms.heartbeats.at, comms.world_rank)
        self._device = open_device(job.device, job.workload, comms, local_rank)
        self._model = build_model(job.model)
        held = {stage: job.partition.layers_of(stage) for stage in job.schedule.stages_of(comms.rank)}
        indices = [index for own in held.values() for index in own]
        made = dict(zip(indices, self._model.build(indices, job.seed), strict=True))
        self.stages = {stage: self._build(stage, [made[index] for index in held[stage]]) for stage in held}
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        self.optimizer = open_optimizer(job.optimizer, parameters, job.learning_rate)
        split = job.schedule.split_stages
        layers = {index: stage.layers for index, stage in self.stages.items()}
        self._at(Place.CONNECTING)
        check_equal_weights(job, self.layers, comms)
        self.sync = open_sync(job.sync, layers, split, comms, self._device)
        self._tied = TiedGradients(job, self.layers, comms)
        self.engines = {name: self._runner(name) for name in job.engines}
        self.engine = self.engines[job.engines[0]]
        self._at(Place.STARTING)
        self._action_times: dict[Actions, ActionTimes] = {}  # an engine's actions are the same in each step
        self._loader = None
        if self._has_first or self._has_last:
            self._loader = BatchLoader(job, comms.replica, self._device.torch_device)
        self._shares = [rows / job.batch_size for rows in job.rows]  # each microbatch's, of the batch
        # Ranks that are threads share the generators with others; a model that draws seeds them.
        is_to_draw = not isinstance(job.model, OwnSettings) or job.model.draws or job.backend == "threads"
        self._generators = None if is_to_draw else generator_states()
        if job.computing.compile:
            self._at(Place.COMPILING, 0)
            self._load_batch(0)
            compile_stages(self.stages, job.schedule.stages - 1, self._boundary(), job.rows, comms)

    def _build(self, stage: int, layers: Sequence[nn.Module]) -> Stage:
        job, device = self._job, self._device
        loss = self._model.loss if stage == job.schedule.stages - 1 else None
        on_device = [layer.to(device.torch_device) for layer in layers]
        split = [microbatch for split_stage, microbatch in job.schedule.split if split_stage == stage]
        policy, chunks = job.checkpointing, job.schedule.chunks
        made = self.stage_type(on_device, loss, policy, chunks, split, device.mark, job.computing, device.torch_device)
        indices = job.partition.layers_of(stage)
        made.divide([self._model.sample(index, 2, job.computing).to(device.torch_device) for index in indices], indices)
        return made

    def _runner(self, engine: str) -> Runner:
        """Return the runner that an engine's name stands for; all runners use the same stages."""
        job, stages, comms, device, boundary = self._job, self.stages, self._comms, self._device, self._boundary()
        if engine == "limit":
            return Limit(job.schedule, stages, boundary, job.rows)
        if engine == "torch":
            order, planned = job.torch_schedule, job.schedule
            return TorchEngine(order, planned, stages, comms, device, boundary, job.rows, job.checkpointing)
        weights, last = job.engine.batch_weights, self.sync.wrap_last
        return Engine(job.schedule, stages, comms, device, boundary, job.rows, weights, last)

    def _boundary(self) -> Boundary:
        job = self._job
        first = [job.partition.layers_of(stage)[0] for stage in range(job.schedule.stages)]

        def dtype(stage: int) -> torch.dtype:
            found: torch.dtype = getattr(torch, job.model.entering(first[stage], job.computing))
            return found

        return Boundary(lambda rows, stage: job.model.boundary(rows, first[stage]), dtype, self._device.torch_device)

    @property
    def layers(self) -> dict[int, nn.Module]:
        """This rank's layers by their index in the model."""
        return {
            index: layer
            for number, stage in self.stages.items()
            for index, layer in zip(self._job.partition.layers_of(number), stage.layers, strict=True)
        }

    @property
    def _has_first(self) -> bool:
        return 0 in self.stages

    @property
    def _has_last(self) -> bool:
        return self._job.schedule.stages - 1 in self.stages

    def load(self, step: int) -> None:
        """Discard the last step's gradients, load the step's batch, and wait for the other ranks."""
        self._at(Place.LOADING, step)
        self.sync.clear(step)
        self._load_batch(step)
        self._at(Place.BARRIER)
        self._comms.barrier()
        self._at(Place.STEPPING)
        self._device.prepare_step()

    def _load_batch(self, step: int) -> None:
        """Give the stages what they need of a step's batch."""
        inputs = targets = None
        if self._loader is not None:
            self._loader.load(step)
            inputs = self._loader.inputs if self._has_first else None
            targets = self._loader.targets if self._has_last else None
        weights = [share * self.sync.loss_scale for share in self._shares]
        first = self._comms.replica * self._job.schedule.chunks
        for stage in self.stages.values():
            stage.load(Batch(step, inputs, targets, weights, first))

    def step(self, step: int, engine: str | None = None) -> StepRow:
        """Run one loaded step and the optimizer, and return the times as a row.

        Args:
            step: the step's index.
            engine: one of the job's engines; None for the first.
        """
        mark = self._device.mark
        overruns, work_ns = self._device.overruns, self._device.work_ns
        engine = engine or self._job.engines[0]
        runner = self.engines[engine]

        # 1. run the actions
        began = mark()
        trace = runner.step(step)  # None if the runner used random inputs
        computed = mark()

        # 2. sum the gradients over the replicas, and those of layers that share weights
        self._at(Place.REDUCING)
        self.sync.finish()
        if trace is not None:
            self._at(Place.TYING)
            self._tied.sum()
        reduced = mark()

        # 3. update the weights
        self._at(Place.OPTIMIZING)
        if trace is not None:
            set_rate(self.optimizer, self._job.learning_rate_at(step))
            self.optimizer.step()
            self._device.finish_optimizer(reduced, self.stages)
        ended = mark()

        # 4. wait for the device and for the other ranks
        weighted = [loss for stage in self.stages.values() for loss in stage.weighted_losses()]
        self._settle(trace)
        self._at(Place.BARRIER)
        self._comms.barrier()  # a rank that cleans up would take a core from one that still computes
        if self._generators is not None and self._generators != generator_states():
            raise RuntimeError(
                "a layer or the loss has drawn random numbers, though none did when they were tried: they would depend "
                "on the order of the actions, so let the layer draw in each forward, or use a generator that it seeds"
            )

        # 5. read the clocks and the losses into a row
        began, computed, reduced, ended = self._device.read([began, computed, reduced, ended])
        self.reductions = self.sync.reductions()
        moments = self._device.read([mark for stage in self.stages.values() for mark in stage.recomputations])
        recompute = sum(moments[1::2]) - sum(moments[::2])
        recompute = self._device.recompute_ns(self._job.schedule.ranks[self._comms.rank], recompute)
        losses = [loss.item() for loss in weighted]
        if trace is not None and engine == self._job.engines[0]:
            self.trace = trace
        row: StepRow = {
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
            "all_reduce_ms": time_reducing(self.reductions) / 1e6,
            "exposed_ms": (reduced - computed) / 1e6,
            "reduced_bytes": self.sync.nbytes,
            "pipeline_ms": (computed - began) / 1e6 * runner.factor,
            "overruns": self._device.overruns - overruns,
            "work_ms": (self._device.work_ns - work_ns) / 1e6,
            "recompute_ms": recompute / 1e6,
        }
        return row if trace is None else {**row, **self._times_of(trace.actions).of(trace)}

    def _settle(self, trace: StepTrace | None) -> None:
        """Wait until the device has done the step; after a time-out the heartbeat says where the device stands."""
        try:
            self._device.settle()
        except TimeoutError:
            if trace is not None and (reached := self._device.reached(trace.marks)) < len(trace.marks):
                action, moment = divmod(reached, 3)
                self._at(2 * action + (moment == 2))
            raise

    def _times_of(self, actions: Actions) -> ActionTimes:
        if actions not in self._action_times:
            self._action_times[actions] = ActionTimes(self._job.schedule, actions)
        return self._action_times[actions]

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the tensors alive between two steps: weights, buckets, the optimizer's state, the loaded batch."""
        yield from self.sync.tensors()
        for stage in self.stages.values():
            yield from stage.tensors()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def memory_step(self, step: int) -> StepRow:
        """Run one loaded step under the memory meters, which are exact but slow; return its row."""
        row: StepRow = {}
        stages = list(self.stages.values())
        meter = ActivationMeter(stages)

        def metered() -> None:
            self.engine.after_action = meter.look
            with meter:
                row.update(self.step(step))
            self.engine.after_action = None

        percent = self._device.utilisation()
        peak = self._device.peak_memory(self._tensors(), metered, self._comms.is_received)
        row["peak_memory_mib"] = peak.all_bytes / MIB
        row["peak_allocated_mib"] = peak.allocated_bytes / MIB
        if peak.reserved_bytes is not None:
            row["peak_reserved_mib"] = peak.reserved_bytes / MIB
        if percent is not None:
            row["smi_percent"] = percent
        row["peak_activation_mib"] = meter.peak_bytes / MIB
        row["in_flight_peak"] = _whole(meter.peak_in_flight / len(stages))
        return row


def _whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


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


class ActionTimes:
    """Computes the times of a rank's actions, in the order in which they run, for its row of a step.

    What does not change from step to step is worked out once.
    """

    def __init__(self, schedule: Schedule, actions: Actions) -> None:
        self._marks: dict[str, list[int]] = {}  # stage and kind -> where the marks of such actions begin
        for position, action in enumerate(map(actions.at, range(len(actions)))):
            self._marks.setdefault(f"{action.stage}{kind_of(schedule, action)}", []).append(3 * position)

    def of(self, trace: StepTrace) -> StepRow:
        """Return the total compute and wait times of a step, and mean times by stage and kind of action (`kind_of`).

        It uses Python's arithmetic: between two steps a few calls of numpy take longer.
        """
        times = trace.times
        sums = {name: sum([times[at + 2] - times[at + 1] for at in own]) for name, own in self._marks.items()}
        return {
            "compute_ms": sum(sums.values()) / 1e6,
            "wait_ms": (sum(times[1::3]) - sum(times[::3])) / 1e6,
            "first_start_ns": times[1],
            "last_end_ns": times[-1],
            "action_ms": {name: total / (len(self._marks[name]) * 1e6) for name, total in sums.items()},
        }
