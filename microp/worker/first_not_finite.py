"""Finds out in which action of a run that has diverged something was not finite for the first time.

::

    the run      step 0 ─► step 1 ─► step 2 ─► step 3 ─► step 4: loss is nan
    repeated     step 0 ─► step 1 ─► step 2 ─► step 3: 1F0 1B0 1F1 1B1 ◄── here, in the gradient that it passes on

A look at every gradient costs time, so the steps of a run are not looked at. They are repeated instead, from the
beginning or from the newest snapshot, by new ranks that look after each action: a training gives the same numbers
each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import Tensor

from microp.comms import Comms
from microp.job import Job, Snapshot
from microp.model import Stage
from microp.records import read_errors, read_rows, snapshots
from microp.schedule import Action, Op
from microp.settings import SyncSettings
from microp.worker.failure import RankError, remedy
from microp.worker.snapshot import Snapshots
from microp.worker.trainer import Trainer

LONGEST_S = 60.0  # steps that took longer are not repeated
Start = Callable[[Job, Path, float, Callable[[Job, Comms, int, Path], Any]], dict[int, Any]]


class Found(NamedTuple):
    """What was not finite."""

    when: int  # when it was seen, in nanoseconds of `perf_counter_ns`, which all ranks of a host share
    step: int  # the step's index
    what: str  # it and its action, as words


class DivergedRunError(RankError):
    """A run has diverged; the message names the first action after which something was not finite."""


def explained(error: RankError, job: Job, attempt: Path, shutdown_s: float, start: Start) -> RankError:
    """Return the error of a run that has diverged with the first action after which something was not finite.

    The error is returned as it is if the ranks have not diverged, or if nothing is found. `start` is `launch_ranks` or
    `run_threads`.
    """
    diverged = [str(row["message"]) for row in read_errors(attempt) if row["diverged"]]
    again = _repeatable(job, attempt) if diverged else None
    if again is None:
        return error
    last, folder = read_rows(attempt, 0)[-1]["step"], snapshots.draft_of(attempt / "repeated")
    try:
        folder.mkdir()
        found = start(again, folder, shutdown_s, partial(look, last=last))[0]
    except (RankError, OSError):  # what was wrong with the run is known already
        found = None
    finally:
        snapshots.remove(folder)
    if found is None:
        return error
    said, _, _ = diverged[0].rpartition(": ")
    return DivergedRunError(
        f"{said}; the first that was not finite: {found.what}: {remedy(job, found.step)}", error.log
    )


def _repeatable(job: Job, attempt: Path) -> Job | None:
    """Return the job that makes the steps of an attempt again; None if that takes too long.

    It has neither what compiles nor what sums over replicas while gradients are still computed.
    """
    rows = read_rows(attempt, 0)
    starts: list[Snapshot | None] = [job.resumed]
    starts += [Snapshot(str(folder), int(folder.name[5:])) for folder in snapshots.snapshots_of(attempt)[-1:]]
    for resumed in starts:
        first = resumed.step if resumed else 0
        repeated = [row for row in rows if row["step"] >= first or row["phase"] == "warmup"]
        if sum(row["step_ms"] for row in repeated) < LONGEST_S * 1e3:
            plain, engine = replace(job.computing, compile=False), job.engine
            engine = replace(engine, name="microp") if engine.name == "torch" else engine
            return replace(job, resumed=resumed, computing=plain, engine=engine, sync=SyncSettings("flat", "library"))
    return None


def look(job: Job, comms: Comms, local_rank: int, attempt: Path, last: int) -> Found | None:
    """Make steps up to the step `last`; return what was not finite first on any rank, None if nothing was."""
    trainer = _Looking(job, comms, local_rank)
    snapshots = Snapshots(job, comms, trainer, attempt)
    for step, _, engine in job.of(comms.replica).phases():
        snapshots.resume(step)
        trainer.load(step)
        trainer.step(step, "microp" if engine == "torch" else engine)
        if found := [Found(*each) for each in comms.gather_all(trainer.found(step)) if each]:
            return min(found)
        if step >= last:
            break
    return None


class _LookingStage(Stage):
    """A stage that looks at what each of its actions gives, until something is not finite."""

    found: tuple[int, Op, int, str] | None = None  # when that was seen, by which action, and what it was
    first_layer = 0  # its index in the model

    def forward(self, microbatch: int, x: Tensor | None) -> Tensor:
        result = super().forward(microbatch, x)
        self._look(Op.F, microbatch, result)
        return result

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        result = super().backward(microbatch, gradient)
        self._look(Op.B, microbatch, result)
        return result

    def weight_gradient(self, microbatch: int, _: Tensor | None) -> None:
        super().weight_gradient(microbatch, _)
        self._look(Op.W, microbatch)

    def weight_gradients(self, microbatches: Sequence[int]) -> None:
        super().weight_gradients(microbatches)
        self._look(Op.W, microbatches[-1])

    def _look(self, op: Op, microbatch: int, result: Tensor | None = None) -> None:
        if self.found is None and (what := self._not_finite(op, result)):
            self.found = perf_counter_ns(), op, microbatch, what

    def _not_finite(self, op: Op, result: Tensor | None) -> str | None:
        """Return what is not finite: the gradient of a weight, of the last layer with one, or the result."""
        gradients = [] if op is Op.F else [(name, weight.grad) for name, weight in self.layers.named_parameters()]
        for name, gradient in reversed(gradients):
            if gradient is not None and not torch.isfinite(gradient).all():
                place, _, weight = name.partition(".")
                return f"the gradient of {weight} in layer {self.first_layer + int(place)}"
        if result is not None and not torch.isfinite(result).all():
            return "the output" if op is Op.F else "the gradient of the input"
        return None


class _Looking(Trainer):
    """A trainer whose stages look."""

    stage_type = _LookingStage

    def __init__(self, job: Job, comms: Comms, local_rank: int) -> None:
        super().__init__(job, comms, local_rank)
        self._looking = {index: stage for index, stage in self.stages.items() if isinstance(stage, _LookingStage)}
        for index, stage in self._looking.items():
            stage.first_layer = job.partition.layers_of(index)[0]

    def found(self, step: int) -> Found | None:
        """Return what was not finite first on this rank, in this step."""
        found = []
        for index, stage in self._looking.items():
            if stage.found:
                when, op, microbatch, what = stage.found
                action = Action(op, index, microbatch)
                found.append(Found(when, step, f"{what}, by {action} in step {step} on rank {self._comms.world_rank}"))
        return min(found, default=None)
