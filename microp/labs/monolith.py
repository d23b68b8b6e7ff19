"""Lab 1: 16 layers in one process, the reference for all later labs.

::

    bytes ─[Linear ReLU]─[Linear ReLU]─ ... 16 ... ─[Linear]─ the next byte?

The text is the source of Python's own library.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from microp.labs.typed import ALONE, TRAINS, bar, say, typed_job
from microp.model import build_model
from microp.system import run_command
from microp.worker import monolith

MOST = 8  # nats: the loss of the longest bar


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the loss as it falls."""
    torch.set_num_threads(1)
    words = "steps=30", "batch_size=128", "model.dim=256", "warmup_steps=0"
    job = typed_job("monolith", __doc__, arguments, *words, fixed=ALONE, takes=["steps", *TRAINS])
    model = build_model(job.model)
    layers = [model.layer(index, job.seed) for index in range(job.model.layers)]
    weights = sum(p.numel() for layer in layers for p in layer.parameters())
    say(f"{job.model.layers} layers, {weights:,} parameters, {job.batch_size} rows per batch, one process\n")
    losses = []
    for number, step in enumerate(monolith.steps(job, job.steps)):
        losses.append(step.loss)
        if number % max(1, job.steps // 10) == 0 or number == job.steps - 1:
            print(bar(f"step {number:2}  loss {step.loss:.3f}  ", step.loss, MOST, " ..." * (step.loss > MOST)))
    lower = "a smaller learning_rate would help" if not losses[-1] <= losses[0] else "a guess among 256 bytes has 5.55"
    say(f"\nThe loss went from {losses[0]:.2f} to {losses[-1]:.2f} nats per byte; {lower}.")
    say("Forward, backward and optimizer run in one process. Next: what if its memory is too small?")


if __name__ == "__main__":
    run_command(main)
