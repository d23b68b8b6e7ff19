"""The unpartitioned model in one process: what every pipeline's numbers must equal.

::

    for each step:
        for each microbatch, in order:   loss(model(x), y) * rows / batch rows,  backward
        optimizer

No stage, engine or schedule is used here, so that a mistake in them shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from microp.model import Dropout
from microp.plan import Plan


class MonolithStep(NamedTuple):
    """A step's loss and, for each layer, the gradients of its parameters."""

    loss: float
    gradients: list[list[Tensor]]


def steps(plan: Plan, count: int) -> Iterator[MonolithStep]:
    """Train for `count` steps over the plan's microbatches, in their order."""
    model = nn.Sequential(*(plan.model.layer(index, plan.seed) for index in range(plan.model.layers)))
    dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.learning_rate, fused=True)
    windows = plan.data.windows(plan.batch_size, plan.model.row_bytes, plan.seed)
    for step in range(count):
        optimizer.zero_grad()
        total = 0.0
        for microbatch, window in enumerate(windows(step).split(plan.rows)):
            for dropout in dropouts:
                dropout.at(step, microbatch)
            weight = plan.rows[microbatch] / plan.batch_size
            loss = plan.model.loss(model(window[:, :-1]), window[:, 1:]) * weight
            loss.backward()
            total += loss.item()
        yield MonolithStep(total, [gradients_of(layer) for layer in model])
        optimizer.step()


def gradients_of(layer: nn.Module) -> list[Tensor]:
    """Copies of the gradients of a layer's parameters, in their order."""
    return [p.grad.clone() for p in layer.parameters() if p.grad is not None]
