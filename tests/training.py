"""What ranks do that train, and what of it is compared: these functions are imported by the rank processes."""

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
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def trained(job: Job, comms: Comms, steps: int = STEPS) -> tuple[Trainer, list[float]]:
    """A trainer after some steps, and its losses: on the last rank, else none."""
    trainer, losses = Trainer(job, comms, comms.rank), []
    for step in range(steps):
        trainer.load(step)
        losses.append(trainer.step(step)["loss"])
    return trainer, [loss for loss in losses if loss is not None]


def train(job: Job, comms: Comms) -> tuple[list[float], dict[int, list[Tensor]]]:
    """Losses (on the last rank, else empty), and the last gradients of this rank's layers."""
    trainer, losses = trained(job, comms)
    return losses, {index: monolith.gradients_of(layer) for index, layer in trainer.layers.items()}


def train_all_tensors(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    return [train(job, comms) for job in jobs]


def order_of_a_step(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    orders = []
    for job in jobs:
        trainer, _ = trained(job, comms, 1)
        orders.append(tuple(span.action for span in sorted(trainer.trace.spans, key=lambda span: span.start)))
    return orders


def peak_memory(job: Job, comms: Comms) -> float:
    """This rank's peak in MiB."""
    trainer, _ = trained(job, comms, 1)
    trainer.load(1)
    return trainer.memory_step(1)["peak_memory_mib"]


def peak_memories(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> list[float]:
    """This rank's peak in MiB, of every job."""
    return [peak_memory(job, comms) for job in jobs]


class Left(NamedTuple):
    """What a rank has after some steps with replicas."""

    losses: list[float]  # its share of each step's loss; empty, but on a pipeline's last rank
    bits: dict[int, tuple[str, str]]  # for each of its layers a digest of the gradients and of the weights
    gradients: dict[int, list[Tensor]]  # on the first replica, for each of its layers
    inputs: str | None  # a digest of the last batch's inputs, where it has the first stage


def train_replica(job: Job, comms: Comms) -> Left:
    trainer, losses = trained(job, comms)
    gradients = {index: monolith.gradients_of(layer) for index, layer in trainer.layers.items()}
    weights = {index: [p.detach() for p in layer.parameters()] for index, layer in trainer.layers.items()}
    bits = {index: (digest(gradients[index]), digest(weights[index])) for index in weights}
    inputs = digest(trainer.stages[0].batch.inputs) if 0 in trainer.stages else None
    return Left(losses, bits, {} if comms.replica else gradients, inputs)


def train_replicas(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> list[Left]:
    return [train_replica(job, comms) for job in jobs]
