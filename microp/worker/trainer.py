"""One rank's stages, optimizer and engines; runs a step from the loaded batch to its row.

::

    load the batch ─ barrier ─┤ run the actions ─ sum gradients ─ optimizer ├─ barrier ─ the row
                              └───────────────── step_ms ──────────────────┘

`building` makes the parts. A new column of the row goes into `Trainer._row` and into `StepRow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from microp.comms import Comms, Place
from microp.device import ActivationMeter, open_device
from microp.job import Job
from microp.model import Batch, build_model, generator_states
from microp.records import StepRow
from microp.replicas import open_sync
from microp.settings import OwnSettings
from microp.system import MIB, queued_ns
from microp.trace import StepTrace, action_times, time_reducing
from microp.worker.building import BatchLoader, build_stages, compile_stages, open_optimizer, open_runner
from microp.worker.shared_weights import TiedGradients, check_equal_data, check_equal_weights


class Trainer:
    """One rank's stages, their optimizer and the engines that run them.

    Raises:
        ValueError: another rank has made other weights.
    """

    def __init__(self, job: Job, comms: Comms, local_rank: int = 0) -> None:
        self._job = job = job.of(comms.replica)
        self._comms = comms
        self._at = partial(comms.heartbeats.at, comms.world_rank)

        # 1. build the stages and their optimizer
        self._device = device = open_device(job.device, job.workload, comms, local_rank)
        model = build_model(job.model)
        self.stages = build_stages(job, model, comms.rank, device)
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        self.optimizer = open_optimizer(job.optimizer, parameters, job.learning_rate)
        self._loader = BatchLoader(job, model, comms.replica, self.stages, device.torch_device)
        self.checksums: list[int] | None = None  # of the last batch, if it is of the model's own data

        # 2. connect them with those of other ranks
        self._at(Place.CONNECTING)
        check_equal_weights(job, self.layers, comms)
        layers = {index: stage.layers for index, stage in self.stages.items()}
        divided = {stage for stage, _ in job.schedule.input_gradients}
        self.sync = open_sync(job.sync, layers, divided, comms, device)
        self._tied = TiedGradients(job, self.layers, comms)
        comms.expect(())  # no mailbox of a job before; microp's engine announces its own
        ends = self.sync.wrap_last, self._tied.messages()
        self.engines = {name: open_runner(name, job, self.stages, comms, device, *ends) for name in job.engines}
        self.engine = self.engines[job.engines[0]]

        # 3. prepare what is the same in each step
        self._at(Place.STARTING)
        # Ranks that are threads share the generators with others; a model that draws seeds them.
        is_to_draw = not isinstance(job.model, OwnSettings) or job.model.draws
        self._generators = None if is_to_draw else generator_states()
        if job.computing.compile:
            self._at(Place.COMPILING, 0)
            self._load_batch(0)
            compile_stages(job, self.stages, comms, device)

    @property
    def layers(self) -> dict[int, nn.Module]:
        """This rank's layers by their index in the model."""
        return {
            index: layer
            for number, stage in self.stages.items()
            for index, layer in zip(self._job.layers_of(number), stage.layers, strict=True)
        }

    def load(self, step: int) -> None:
        """Discard the last step's gradients, load the step's batch, and wait for the other ranks.

        Raises:
            ValueError: another rank has drawn another batch of the model's own data.
        """
        self._at(Place.LOADING, step)
        self.sync.clear(step)
        self._load_batch(step)
        self._compare_batch(step)
        self._at(Place.BARRIER)
        self._comms.barrier()
        self._at(Place.STEPPING)
        self._device.prepare_step()

    def _compare_batch(self, step: int) -> None:
        """Compare the batch that was drawn last, if it is of the model's own data, with the other ranks'."""
        if self._loader.has_own:
            self._at(Place.BARRIER)
            checksums = self._comms.gather_all(self._loader.checksums)
            self._at(Place.LOADING)
            self.checksums = check_equal_data(checksums, step)

    def check_resumed(self, step: int, saved: list[int] | None) -> None:
        """Compare the batch of the step before a snapshot with the checksums that the snapshot has of it.

        Raises:
            ValueError: the model's own data make another one now; all ranks raise the same.
        """
        if saved and self._loader.has_own:
            self._loader.draw(step)
            self._compare_batch(step)
            if self.checksums != saved:
                raise ValueError(
                    f"data that give other rows of step {step} than when the snapshot was taken: let rows follow from "
                    "the step alone, and keep nothing that an earlier step has drawn; or start without the snapshot"
                )

    def _load_batch(self, step: int) -> None:
        """Give the stages what they need of a step's batch."""
        self._loader.load(step)
        schedule = self._job.schedule
        whole = self._job.batch_size * schedule.slices
        weights = [rows / whole * self.sync.loss_scale for rows in self._job.rows]
        first = self._comms.replica * schedule.units
        for stage in self.stages.values():
            stage.load(Batch(step, self._loader.inputs, self._loader.targets, weights, first))

    def step(self, step: int, engine: str | None = None) -> StepRow:
        """Run one loaded step by an engine of the job (None: the first) and the optimizer; return its row."""
        engine = engine or self._job.engines[0]
        runner, mark = self.engines[engine], self._device.mark
        overruns, work_ns, queued = self._device.overruns, self._device.work_ns, queued_ns()

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
            if self._job.schedule.copies > 1:
                self._device.finish_sums(computed, self.stages)
        reduced = mark()

        # 3. update the weights
        self._at(Place.OPTIMIZING)
        if trace is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._job.learning_rate_at(step)
            self.optimizer.step()
            self._device.finish_optimizer(reduced, self.stages)
        ended = mark()
        counted = self._device.overruns - overruns, self._device.work_ns - work_ns, queued_ns(queued)

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
        if trace is not None and engine == self._job.engines[0]:
            self.trace = trace
        return self._row(step, engine, trace, [began, computed, reduced, ended], weighted, counted)

    def _settle(self, trace: StepTrace | None) -> None:
        """Wait until the device has done the step; after a time-out the heartbeat says where the device stands."""
        try:
            self._device.settle()
        except TimeoutError:
            if trace is not None and (reached := self._device.reached(trace.marks)) < len(trace.marks):
                action, moment = divmod(reached, 3)
                self._at(2 * action + (moment == 2))
            raise

    def _row(
        self,
        step: int,
        engine: str,
        trace: StepTrace | None,
        marks: list[Any],
        weighted: list[Tensor],
        counted: tuple[int, int, int | None],
    ) -> StepRow:
        """Return a step as a row.

        `marks` are the beginning, and the ends of the actions, of the sums and of the optimizer; `weighted` has the
        loss of each microbatch times its weight, on the rank of the last stage; `counted` the step's overruns,
        nanoseconds of real work, and those in which the rank could have run and had no core.
        """
        began, computed, reduced, ended = self._device.read(marks)
        self.reductions = self.sync.reductions()
        moments = self._device.read([mark for stage in self.stages.values() for mark in stage.recomputations])
        recompute = sum(moments[1::2]) - sum(moments[::2])
        recompute = self._device.recompute_ns(self._job.schedule.ranks[self._comms.rank], recompute)
        has_loss = trace is not None and not self.stages.keys().isdisjoint(self._job.schedule.ends[1])
        overruns, work_ns, queued = counted
        row: StepRow = {
            "step": step,
            "rank": self._comms.rank,
            "replica": self._comms.replica,
            "engine": engine,
            "sync": self.sync.name,
            "loss": sum(loss.item() for loss in weighted) / self.sync.loss_scale if has_loss else None,
            "began_ns": began,
            "ended_ns": ended,
            "step_ms": (ended - began) / 1e6,
            "optimizer_ms": (ended - reduced) / 1e6,
            "all_reduce_ms": time_reducing(self.reductions) / 1e6,
            "exposed_ms": (reduced - computed) / 1e6,
            "reduced_bytes": self.sync.nbytes,
            "pipeline_ms": (computed - began) / 1e6 * self.engines[engine].factor,
            "overruns": overruns,
            "work_ms": work_ns / 1e6,
            "recompute_ms": recompute / 1e6,
            "queued_ms": None if queued is None else queued / 1e6,
        }
        return row if trace is None else {**row, **action_times(trace.spans)}

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the tensors alive between two steps: weights, buckets, the optimizer's state, the loaded batch."""
        yield from self.sync.tensors
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
        schedule = self._job.schedule
        in_flight = meter.peak_in_flight * schedule.copies / (len(stages) * schedule.slices)
        row["in_flight_peak"] = int(in_flight) if in_flight.is_integer() else in_flight
        return row
