"""Lab 3: two halves by hand. Autograd stops at the cut, so the program itself sends what crosses it.

::

    part 1  x ─[8 layers]─ y ┈┈ detach ┈┈► y'            the activation goes on
    part 2                                 y' ─[8 layers]─ loss
    part 1  ◄─ y.backward(y'.grad) ┈┈┈┈┈┈┈ y'.grad       its gradient comes back
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from microp.labs.typed import ALONE, parser_of, say, typed_job
from microp.model import build_model, open_data
from microp.system import run_command
from microp.worker import monolith


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one step in two parts, and compare every gradient with the monolith's."""
    torch.set_num_threads(1)
    job = typed_job("manual_split", __doc__, arguments, "batch_size=64", "model.dim=256", fixed=ALONE)
    model = build_model(job.model)
    layers = [model.layer(index, job.seed) for index in range(job.model.layers)]
    half = len(layers) // 2
    if not half:
        parser_of("manual_split", __doc__).error("model.layers=1 has no halves: use at least 2")
    part1, part2 = nn.Sequential(*layers[:half]), nn.Sequential(*layers[half:])
    window = open_data(job.data, job.batch_size, job.model.row_bytes, job.seed)(0)
    x, target = window[:, :-1], window[:, 1:]

    y = part1(x)
    received = y.detach().requires_grad_()  # another rank would receive these numbers without the graph
    loss = model.loss(part2(received), target)
    loss.backward()
    print(f"part 2: loss {loss.item():.4f}; its first layer has gradients: {_has_gradients(part2)}")
    print(f"part 1: no gradient has arrived yet, gradients: {_has_gradients(part1)}")
    y.backward(received.grad)
    print(f"part 1: after y.backward(gradient of the activation), gradients: {_has_gradients(part1)}\n")

    [whole] = monolith.steps(job, 1)
    mine = [gradient for layer in layers for gradient in monolith.gradients_of(layer)]
    theirs = [gradient for layer in whole.gradients for gradient in layer]
    equal = [torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)]
    size = y.nbytes / 1024
    say(f"sent forward: the activation, {tuple(y.shape)}, {size:.0f} KiB; sent back: its gradient, of the same size")
    say(f"monolith: loss {whole.loss:.4f}; {sum(equal)} of {len(equal)} gradients equal the monolith's bit for bit")


def _has_gradients(part: nn.Module) -> bool:
    return all(parameter.grad is not None for parameter in part.parameters())


if __name__ == "__main__":
    run_command(main)
