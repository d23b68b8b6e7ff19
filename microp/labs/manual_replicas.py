"""Lab 4: two copies by hand. Each sees half of the batch; averaged, their gradients are the whole batch's.

::

    rows 0-31   ─► copy 0 ─► g₀ ─┐
                                 ├─► (g₀ + g₁) / 2 ─► both copies ─► the same step
    rows 32-63  ─► copy 1 ─► g₁ ─┘
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from microp import monolith
from microp.config import plan_of


def main() -> None:
    """Train one step on two copies, and compare their averaged gradients with the monolith's."""
    torch.set_num_threads(1)
    plan = plan_of("ranks=1", "chunks=1", "batch_size=64", "model.dim=256", "model.dtype=float64")
    window = plan.data.windows(plan.batch_size, plan.model.row_bytes, plan.seed)(0)
    copies = [[plan.model.layer(index, plan.seed) for index in range(plan.model.layers)] for _ in range(2)]
    for number, (layers, rows) in enumerate(zip(copies, window.chunk(2), strict=True)):
        loss = plan.model.loss(nn.Sequential(*layers)(rows[:, :-1]), rows[:, 1:])
        loss.backward()
        print(f"copy {number}: {len(rows)} rows, loss {loss.item():.4f}")

    [whole] = monolith.steps(plan, 1)
    first, second = ([g for layer in layers for g in monolith.gradients_of(layer)] for layers in copies)
    expected = [gradient for layer in whole.gradients for gradient in layer]
    average = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    print(f"whole batch: loss {whole.loss:.4f}, the mean of both\n")
    print(f"largest difference from the whole batch's gradient: copy 0 alone  {_farthest(first, expected):.1e}")
    print(f"                                                     the average  {_farthest(average, expected):.1e}")
    moved = sum(gradient.nbytes for gradient in first) / 2**20
    print(f"\nWhat copies have to exchange in every step: {moved:.1f} MiB, all gradients, however few the rows.")
    print("Equal weights before, equal gradients: equal weights after. So they stay copies.")


def _farthest(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


if __name__ == "__main__":
    main()
