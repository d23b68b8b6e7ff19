"""Lab 1: 16 layers in one process, the reference for all later labs.

::

    bytes ─[Linear ReLU]─[Linear ReLU]─ ... 16 of them ... ─[Linear]─ the next byte?     loss ↓

The text is the source of Python's own library.
"""

from __future__ import annotations

import torch

from microp.config import job_of
from microp.model import build_model
from microp.system import run_command
from microp.worker import monolith

STEPS = 30


def main() -> None:
    """Train, and print the loss as it falls."""
    torch.set_num_threads(1)
    job = job_of("ranks=1", "chunks=1", "batch_size=128", "model.dim=256")
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
