"""Makes the optimizer that settings describe."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from microp.settings import AdamSettings, OptimizerSettings, SgdSettings


def open_optimizer(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter], rate: float
) -> torch.optim.Optimizer:
    """Return the optimizer of these weights, of which there may be none, with this learning rate."""
    group = [{"params": list(parameters)}]
    if isinstance(settings, SgdSettings):
        make = partial(torch.optim.SGD, momentum=settings.momentum)
    else:
        assert isinstance(settings, AdamSettings)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.name]
        make = partial(kind, betas=(settings.betas[0], settings.betas[1]))
    return make(group, lr=rate, weight_decay=settings.weight_decay, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
