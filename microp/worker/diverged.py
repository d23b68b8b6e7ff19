"""Tells a training that can no longer be saved: its loss or its weights are not finite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from microp.job import Job


class DivergedError(ArithmeticError):
    """The loss or the weights are not finite; the message names the step, the rank and the remedy."""


def not_finite(layers: Mapping[int, nn.Module]) -> tuple[int, str] | None:
    """Return the last of these layers with a weight that is not finite, and the weight's name; None if all are.

    A backward passes on what is not finite from layer to layer, to the first one: it came in at the last of them or
    behind it. What is not trained may hold infinities, as an attention mask does, but not NaN.
    """
    for index, layer in sorted(layers.items(), reverse=True):
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            bad = ~torch.isfinite(tensor) if tensor.requires_grad else torch.isnan(tensor)
            if bad.any():
                return index, name
    return None


def remedy(job: Job, step: int) -> str:
    """Return what to do if a step is the first in which something was not finite."""
    if step == 0:  # nothing has been learned yet
        return "look at the model and the data, for before the first step no learning rate has been used"
    return f"lower learning_rate={job.learning_rate:g}"
