"""Lab 1: 16 layers in one process, the reference for all later labs.

::

    bytes ─[Linear ReLU]─[Linear ReLU]─ ... 16 of them ... ─[Linear]─ the next byte?     loss ↓

The text is the source of Python's own library.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from microp.labs.typed import ALONE, typed_job
from microp.model import build_model
from microp.system import run_command
from microp.worker import monolith

STEPS = 30


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the loss as it falls."""
    torch.set_num_threads(1)
    job = typed_job("monolith", __doc__, arguments, "batch_size=128", "model.dim=256", fixed=ALONE)
    model = build_model(job.model)
    layers = [model.layer(index, job.seed) for index in range(job.model.layers)]
    weights = sum(p.numel() for layer in layers for p in layer.parameters())
    print(f"{job.model.layers} layers, {weights:,} parameters, {job.batch_size} rows per batch, one process\n")
    losses = []
    for number, step in enumerate(monolith.steps(job, STEPS)):
        losses.append(step.loss)
        if number % 3 == 0 or number == STEPS - 1:
            print(f"step {number:2}  loss {step.loss:.3f}  {'█' * round(8 * step.loss)}")
    print(f"\nThe loss fell from {losses[0]:.2f} to {losses[-1]:.2f} nats per byte; a guess among 256 bytes has 5.55.")
    print("Forward, backward and optimizer run in one process. Next: what if its memory is too small?")


if __name__ == "__main__":
    run_command(main)
