"""Lab 3: two halves by hand. Autograd stops at the cut; what crosses it is yours to carry.

::

    part 1  x ─[8 layers]─ y ┈┈ detach ┈┈► y'                   the activation goes forward
    part 2                                 y' ─[8 layers]─ loss
    part 1  ◄─ y.backward(y'.grad) ┈┈┈┈┈┈┈ y'.grad              its gradient comes back
"""

from __future__ import annotations

import torch
from torch import nn

from microp import monolith
from microp.config import plan_of


def main() -> None:
    """Train one step in two parts, and compare every gradient with the monolith's."""
    torch.set_num_threads(1)
    plan = plan_of("ranks=1", "chunks=1", "batch_size=64", "model.dim=256")
    layers = [plan.model.layer(index, plan.seed) for index in range(plan.model.layers)]
    half = len(layers) // 2
    part1, part2 = nn.Sequential(*layers[:half]), nn.Sequential(*layers[half:])
    window = plan.data.windows(plan.batch_size, plan.model.row_bytes, plan.seed)(0)
    x, target = window[:, :-1], window[:, 1:]

    y = part1(x)
    handed_over = y.detach().requires_grad_()  # another rank would get these numbers, and no graph
    loss = plan.model.loss(part2(handed_over), target)
    loss.backward()
    print(f"part 2: loss {loss.item():.4f}; its first layer has gradients: {_has_gradients(part2)}")
    print(f"part 1: nothing has come back yet, gradients: {_has_gradients(part1)}")
    came_back = handed_over.grad
    y.backward(came_back)
    print(f"part 1: after y.backward(gradient of the activation), gradients: {_has_gradients(part1)}\n")

    [whole] = monolith.steps(plan, 1)
    mine = [gradient for layer in layers for gradient in monolith.gradients_of(layer)]
    theirs = [gradient for layer in whole.gradients for gradient in layer]
    equal = [torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)]
    size = y.nbytes / 1024
    print(f"handed forward: the activation, {tuple(y.shape)}, {size:.0f} KiB; handed back: its gradient, as large")
    print(f"loss of the monolith {whole.loss:.4f}; {sum(equal)} of {len(equal)} gradients equal it bit for bit")


def _has_gradients(part: nn.Module) -> bool:
    return all(parameter.grad is not None for parameter in part.parameters())


if __name__ == "__main__":
    main()
