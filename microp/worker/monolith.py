"""Trains the unpartitioned model in one process; every pipeline must give the same losses and gradients.

::

    for each step:
        for each microbatch, in order:   loss(model(x), y) * rows / batch rows,  backward
        add up the gradients of tied weights
        optimizer

No stage, engine or schedule is used here, so a mistake in them shows as a difference.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from microp.job import Job
from microp.model import build_model, open_autocast, open_batches, random_parts
from microp.worker.building import open_optimizer


class MonolithStep(NamedTuple):
    """The loss of a step and, for each layer, the gradients of its parameters."""

    loss: float
    gradients: list[list[Tensor]]


def steps(job: Job, count: int) -> Iterator[MonolithStep]:
    """Train for `count` steps over the job's microbatches in order; yield each step's loss and gradients."""
    subject = build_model(job.model)
    model = nn.Sequential(*subject.build(range(job.model.layers), job.seed))
    random = list(random_parts(model))
    autocast = open_autocast(job.computing, "cpu")
    optimizer = open_optimizer(job.optimizer, model.parameters(), job.learning_rate)
    batches = open_batches(job.data, subject, job.batch_size, job.model.row_bytes, job.seed)
    for step in range(count):
        optimizer.zero_grad()
        total = 0.0
        every = job.rows[:: job.schedule.slices]
        given = zip(*(tensor.split(every) for tensor in batches(step)), strict=True)
        for microbatch, (inputs, targets) in enumerate(given):
            for part in random:
                part.at(step, microbatch)
            weight = every[microbatch] / job.batch_size
            with autocast:
                loss = subject.loss(model(inputs), targets) * weight
            loss.backward()
            total += loss.item()
        for copies in job.model.tied_weights:
            tied = [model[layer].get_parameter(name) for layer, name in copies]
            summed = functools.reduce(torch.add, [copy.grad for copy in tied if copy.grad is not None])
            for copy in tied:
                copy.grad = summed.clone()
        yield MonolithStep(total, [gradients_of(layer) for layer in model])
        for group in optimizer.param_groups:
            group["lr"] = job.learning_rate_at(step)
        optimizer.step()


def gradients_of(layer: nn.Module) -> list[Tensor]:
    """Return copies of the gradients of a layer's parameters, in the order of the parameters."""
    return [p.grad.clone() for p in layer.parameters() if p.grad is not None]
