"""What ranks do that train, and what of it is compared: these functions are imported by the rank processes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from microp.comms import Comms
from microp.job import Job
from microp.worker import Trainer, monolith

STEPS = 2  # the second one sees the optimizer's work


def digest(tensors: Sequence[Tensor]) -> str:
    """Equal for equal bits."""
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def train(job: Job, comms: Comms) -> tuple[list[float], dict[int, list[Tensor]]]:
    """Losses (on the last rank, else empty), and the last gradients of this rank's layers."""
    trainer = Trainer(job, comms, comms.rank)
    losses = []
    for step in range(STEPS):
        trainer.load(step)
        row = trainer.step(step)
        if row["loss"] is not None:
            losses.append(row["loss"])
    gradients = {
        index: monolith.gradients_of(layer)
        for number, stage in trainer.stages.items()
        for index, layer in zip(job.partition.layers_of(number), stage.layers, strict=True)
    }
    return losses, gradients


def train_all(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """(losses, digest of each layer's gradients) of every job, one after the other."""
    results = []
    for job in jobs:
        losses, gradients = train(job, comms)
        results.append((losses, {index: digest(tensors) for index, tensors in gradients.items()}))
    return results


def train_all_tensors(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    return [train(job, comms) for job in jobs]


def order_of_a_step(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """This rank's actions in the order of their starts, as traced, of every job."""
    orders = []
    for job in jobs:
        trainer = Trainer(job, comms, comms.rank)
        trainer.load(0)
        trainer.step(0)
        orders.append(tuple(span.action for span in sorted(trainer.trace.spans, key=lambda span: span.start)))
    return orders


def peak_memory(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """This rank's peak memory in MiB, of every job."""
    peaks = []
    for job in jobs:
        trainer = Trainer(job, comms, comms.rank)
        trainer.load(0)
        trainer.step(0)
        trainer.load(1)
        peaks.append(trainer.memory_step(1)["peak_memory_mib"])
    return peaks


class Left(NamedTuple):
    """What a rank has after some steps with replicas.

    Attributes:
        losses: its share of each step's loss; empty, but on a pipeline's last rank.
        bits: for each of its layers a digest of the gradients and of the weights.
        gradients: on the first replica, for each of its layers.
        inputs: a digest of the last batch's inputs, where it has the first stage.
    """

    losses: list[float]
    bits: dict[int, tuple[str, str]]
    gradients: dict[int, list[Tensor]]
    inputs: str | None


def train_replica(job: Job, comms: Comms) -> Left:
    trainer = Trainer(job, comms, comms.rank)
    rows = []
    for step in range(STEPS):
        trainer.load(step)
        rows.append(trainer.step(step))
    layers = {
        index: layer
        for number, stage in trainer.stages.items()
        for index, layer in zip(job.partition.layers_of(number), stage.layers, strict=True)
    }
    gradients = {index: monolith.gradients_of(layer) for index, layer in layers.items()}
    weights = {index: [p.detach() for p in layer.parameters()] for index, layer in layers.items()}
    first = trainer.stages.get(0)
    return Left(
        [row["loss"] for row in rows if row["loss"] is not None],
        {index: (digest(gradients[index]), digest(weights[index])) for index in layers},
        {} if comms.replica else gradients,
        digest(first.batch.inputs) if first else None,
    )


def train_replicas(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> list[Left]:
    return [train_replica(job, comms) for job in jobs]
