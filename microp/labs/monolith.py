"""Lab 1: 16 layers in one process. What every later lab has to equal.

::

    bytes ─[Linear ReLU]─[Linear ReLU]─ ... 16 of them ... ─[Linear]─ the next byte?     loss ↓

The text is the source of Python's own library.
"""

from __future__ import annotations

import torch

from microp import monolith
from microp.config import plan_of

STEPS = 30


def main() -> None:
    """Train, and print the loss as it falls."""
    torch.set_num_threads(1)
    plan = plan_of("ranks=1", "chunks=1", "batch_size=128", "model.dim=256")
    model = [plan.model.layer(index, plan.seed) for index in range(plan.model.layers)]
    weights = sum(p.numel() for layer in model for p in layer.parameters())
    print(f"{plan.model.layers} layers, {weights:,} parameters, {plan.batch_size} rows a batch, one process\n")
    losses = []
    for number, step in enumerate(monolith.steps(plan, STEPS)):
        losses.append(step.loss)
        if number % 3 == 0 or number == STEPS - 1:
            print(f"step {number:2}  loss {step.loss:.3f}  {'█' * round(8 * step.loss)}")
    print(f"\nThe loss fell from {losses[0]:.2f} to {losses[-1]:.2f} nats a byte; guessing among 256 bytes costs 5.55.")
    print("Forward, backward, optimizer: all in one place. Next: what if the place is too small?")


if __name__ == "__main__":
    main()
