"""Lab 4: two copies by hand, each with half of the batch. Their averaged gradients are those of the whole batch.

::

    rows 0-31   ─► copy 0 ─► g₀ ─┐
                                 ├─► (g₀ + g₁) / 2 ─► both ─► the same step
    rows 32-63  ─► copy 1 ─► g₁ ─┘

The lab computes in float64, where what is left between the average and the gradient of the whole batch is rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from microp.labs.typed import ALONE, parser_of, say, typed_job
from microp.model import build_model, open_data
from microp.system import MIB, run_command
from microp.worker import monolith


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one step on two copies, and compare their averaged gradients with the monolith's."""
    torch.set_num_threads(1)
    words = "batch_size=64", "model.dim=256", "model.dtype=float64"
    job = typed_job("manual_replicas", __doc__, arguments, *words, fixed=ALONE)
    if job.batch_size % 2:
        wrong = f"batch_size={job.batch_size} is odd, and each copy takes half of the rows"
        parser_of("manual_replicas", __doc__).error(f"{wrong}: use {job.batch_size + 1}")
    model = build_model(job.model)
    window = open_data(job.data, job.batch_size, job.model.row_bytes, job.seed)(0)
    copies = [[model.layer(index, job.seed) for index in range(job.model.layers)] for _ in range(2)]
    for number, (layers, rows) in enumerate(zip(copies, window.chunk(2), strict=True)):
        loss = model.loss(nn.Sequential(*layers)(rows[:, :-1]), rows[:, 1:])
        loss.backward()
        print(f"copy {number}: {len(rows)} rows, loss {loss.item():.4f}")

    [whole] = monolith.steps(job, 1)
    first, second = ([g for layer in layers for g in monolith.gradients_of(layer)] for layers in copies)
    expected = [gradient for layer in whole.gradients for gradient in layer]
    average = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    print(f"whole batch: loss {whole.loss:.4f}, the mean of both\n")
    print("largest difference from the whole batch's gradient:")
    print(f"  only copy 0   {_farthest(first, expected):.1e}\n  the average   {_farthest(average, expected):.1e}")
    why = "What is left is rounding, as the same numbers are summed in another order. In float64, the lab's own, it is "
    say(f"{why}near 1e-16 and cannot be mistaken for more; in float32 (model.dtype=float32) it is near 1e-7.")
    moved = sum(gradient.nbytes for gradient in first) / MIB
    say(f"\nIn every step the copies exchange all gradients, {moved:.1f} MiB, for any number of rows.")
    say("Equal weights and equal gradients give equal weights after the step, so the copies stay equal.")


def _farthest(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))


if __name__ == "__main__":
    run_command(main)
