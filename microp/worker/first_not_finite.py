"""Finds out in which action of a run that has diverged something was not finite for the first time.

::

    the run      step 0 ─► step 1 ─► step 2 ─► step 3 ─► step 4: loss is nan
    repeated     step 0 ─► step 1 ─► step 2 ─► step 3: 1F0 1B0 1F1 1B1 ◄── here, in the gradient that it passes on

A look at every gradient costs time, so the steps of a run are not looked at. They are repeated instead, from the
beginning or from the newest snapshot, by new ranks that look after each action: a training gives the same numbers
each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from microp.comms import Comms
from microp.job import Job, Snapshot
from microp.model import Stage
from microp.records import read_errors, read_rows, snapshots
from microp.schedule import Action, Op
from microp.settings import EngineSettings, SyncSettings
from microp.worker.failure import RankError, remedy
from microp.worker.snapshot import Snapshots
from microp.worker.trainer import Trainer

LONGEST_S = 60.0  # steps that took longer are not repeated
Start = Callable[[Job, Path, Callable[[Job, Comms, int, Path], Any]], dict[int, Any]]


def explained(error: RankError, job: Job, attempt: Path, start: Start) -> RankError:
    """Return the error of a run that has diverged with the first action after which something was not finite.

    The error is returned as it is if the ranks have not diverged, or if nothing is found. `start` is `launch_ranks` or
    `run_threads`.
    """
    diverged = [str(row["message"]) for row in read_errors(attempt) if row["diverged"]]
    if not diverged or (again := _repeatable(job, attempt)) is None:
        return error
    last, folder, first = read_rows(attempt, 0)[-1]["step"], snapshots.draft_of(attempt / "repeated"), None
    try:
        folder.mkdir()
        first = start(again, folder, partial(look, last=last))[0]
    except (RankError, OSError):
        pass  # what was wrong with the run is known already
    finally:
        snapshots.remove(folder)
    if first is None:
        return error
    said, (_, step, what) = diverged[0].rpartition(": ")[0], first
    return RankError(f"{said}; the first that was not finite: {what}: {remedy(job, step)}", error.log)


def _repeatable(job: Job, attempt: Path) -> Job | None:
    """Return the job that makes the steps of an attempt again; None if that takes too long.

    It has neither what compiles nor what sums over replicas while gradients are still computed.
    """
    resumed, rows = job.resumed, read_rows(attempt, 0)
    for folder in snapshots.snapshots_of(attempt)[-1:]:
        resumed = Snapshot(str(folder), int(folder.name.removeprefix("step-")))
    first = resumed.step if resumed else 0
    if sum(row["step_ms"] for row in rows if row["step"] >= first or row["phase"] == "warmup") > LONGEST_S * 1e3:
        return None
    plain, name = replace(job.computing, compile=False), job.engine.name
    engine = EngineSettings("microp" if name == "torch" else name, batch_weights=False)
    return replace(job, resumed=resumed, computing=plain, engine=engine, sync=SyncSettings("flat", "library"))


def look(job: Job, comms: Comms, local_rank: int, attempt: Path, last: int) -> list[Any] | None:
    """Make steps up to the step `last`; return what was not finite first on any rank, None if nothing was.

    That is its moment by `perf_counter_ns`, which all ranks of a host share, its step, and it and its action as words.
    """
    trainer = Trainer(job, comms, local_rank, _LookingStage)
    snapshots = Snapshots(job, comms, trainer, attempt)
    for step, _, engine in job.of(comms.replica).phases():
        snapshots.resume(step)
        trainer.load(step)
        trainer.step(step, "microp" if engine == "torch" else engine)
        seen = []
        for index, stage in trainer.stages.items():
            if isinstance(stage, _LookingStage) and stage.seen:
                when, op, microbatch, layer, what = stage.seen
                place = "" if layer is None else f" in layer {job.layers_of(index)[layer]}"
                action = Action(op, index, microbatch)
                seen.append((when, step, f"{what}{place}, by {action} in step {step} on rank {comms.world_rank}"))
        if every := [finding for rank in comms.gather_all(seen) for finding in rank]:
            return list(min(every))
        if step >= last:
            break
    return None


class _LookingStage(Stage):
    """A stage that looks at what each of its actions gives, until something is not finite.

    `seen` is then when that was, the op and the microbatch, the layer's position if it is a weight's gradient, and what
    it was.
    """

    seen: tuple[int, Op, int, int | None, str] | None = None

    def forward(self, microbatch: int, x: Tensor | None) -> Tensor:
        output = super().forward(microbatch, x)
        self._look(Op.F, microbatch, output)
        return output

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        input_gradient = super().backward(microbatch, gradient)
        self._look(Op.I if microbatch in self._deferred else Op.B, microbatch, input_gradient)
        return input_gradient

    def weight_gradient(self, microbatch: int, _: Tensor | None) -> None:
        super().weight_gradient(microbatch, _)
        self._look(Op.W, microbatch)

    def _look(self, op: Op, microbatch: int, result: Tensor | None = None) -> None:
        """Look at the weights' gradients, from the last layer to the first, then at the result."""
        if self.seen:
            return
        weights = [] if op is Op.F else [*self.layers.named_parameters()]
        for name, weight in reversed(weights):
            if weight.grad is not None and not torch.isfinite(weight.grad).all():
                layer, _, key = name.partition(".")
                self.seen = perf_counter_ns(), op, microbatch, int(layer), f"the gradient of {key}"
                return
        if result is not None and not torch.isfinite(result).all():
            what = "the output" if op is Op.F else "the gradient of the input"
            self.seen = perf_counter_ns(), op, microbatch, None, what
