"""Pipelines on processes and on threads, and the single process whose losses and gradients they have."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import training
from threads import in_threads
from torch import Tensor

from microp.comms import thread_comms
from microp.job import Job
from microp.worker import launch_ranks, monolith

Trained = tuple[list[float], list[list[Tensor]]]
"""The losses of `training.STEPS` steps, and the last gradients of each layer."""

_known: dict[str, Trained] = {}


def by_one_process(job: Job) -> Trained:
    key = repr((job.model, job.schedule.chunks, job.batch_size, job.replicas, job.computing))
    if key not in _known:
        steps = list(monolith.steps(job, training.STEPS))
        _known[key] = [step.loss for step in steps], steps[-1].gradients
    return _known[key]


def by_threads(job: Job, timeout_s: float = 20.0, transport=thread_comms) -> Trained:
    return _joined(job, in_threads(transport(job.ranks, timeout_s), partial(training.train, job), timeout_s))


def by_processes(jobs: Sequence[Job], folder: Path) -> list[Trained]:
    """Train all jobs, which have as many ranks, in one launch."""
    results = launch_ranks(jobs[0], folder, partial(training.train_all_tensors, jobs))
    return [_joined(job, [results[rank][number] for rank in range(job.ranks)]) for number, job in enumerate(jobs)]


def _joined(job: Job, ranks: Sequence[tuple[list[float], dict[int, list[Tensor]]]]) -> Trained:
    layers = {index: gradients for _, held in ranks for index, gradients in held.items()}
    ends = [ranks[job.schedule.placement[stage]][0] for stage in job.schedule.ends[1]]  # one for each copy
    losses = [sum(shares) for shares in zip(*ends, strict=True)]
    return losses, [layers[index] for index in range(job.model.layers)]


def assert_equal(job: Job, trained: Trained) -> None:
    case = f"{job.schedule.name} m{job.schedule.chunks} {job.partition.sizes} {job.checkpointing.name} {job.model.name}"
    (losses, layers), (want_losses, want) = trained, by_one_process(job)
    assert losses == want_losses, case
    assert list(map(training.digest, layers)) == list(map(training.digest, want)), case


def assert_near(trained: Trained, want: Trained, rtol: float = 0.0, atol: float = 1e-12, of_loss: float = 0.0) -> None:
    """`rtol`, `atol`: of gradients; the losses may differ by `of_loss` as a share, or by `atol`."""
    assert trained[0] == pytest.approx(want[0], rel=of_loss, abs=atol)
    for layer, want_layer in zip(trained[1], want[1], strict=True):
        for gradient, want_gradient in zip(layer, want_layer, strict=True):
            torch.testing.assert_close(gradient, want_gradient, rtol=rtol, atol=atol)
