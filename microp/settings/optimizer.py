"""The settings of the optimizer and of its learning rate. `microp.worker` makes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from microp.settings.rules import OneOf, Range, broken_rules

MOST = 1_000_000_000


@dataclass
class OptimizerSettings:
    """The keys of every optimizer.

    Attributes:
        name: the option's name in `conf/optimizer/`.
        weight_decay: how much of a weight is taken away in a step; adam and sgd add it to the gradient.
        decay: how the learning rate falls to 0 until the last training step: constant (it does not), linear, cosine.
        warmup_steps: the first training steps, in which the learning rate rises linearly.
    """

    name: Annotated[str, OneOf("adam", "adamw", "sgd")]
    weight_decay: Annotated[float, Range(0, 1_000)]
    decay: Annotated[str, OneOf("constant", "linear", "cosine")]
    warmup_steps: Annotated[int, Range(0, MOST)]

    @property
    def states(self) -> int:
        """The number of tensors of a weight's size that the optimizer keeps for each weight."""
        return 2

    @property
    def kind(self) -> str:
        """What the time of its step depends on, in words."""
        return self.name

    def share(self, step: int, steps: int) -> float:
        """Return the share of the learning rate in a step.

        Args:
            step: the index of the training step.
            steps: the number of training steps.
        """
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        done = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        return {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.decay]

    def problems(self, steps: int) -> list[str]:
        """List what is wrong with these values for this number of training steps, one sentence each."""
        found = broken_rules(self, "optimizer.")
        if not found and self.warmup_steps >= steps > 0:
            found.append(
                f"optimizer.warmup_steps={self.warmup_steps} is not less than the {steps} training steps: "
                f"use at most {steps - 1}, or more steps"
            )
        return found


@dataclass
class AdamSettings(OptimizerSettings):
    """Adam, and AdamW, whose weight decay does not pass through its moments.

    Attributes:
        betas: the decay of its two moments.
    """

    betas: list[float]

    def problems(self, steps: int) -> list[str]:
        found = super().problems(steps)
        if len(self.betas) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas):
            found.append(f"optimizer.betas={self.betas} are not two numbers in [0, 1): use for example [0.9,0.999]")
        return found


@dataclass
class SgdSettings(OptimizerSettings):
    """Stochastic gradient descent.

    Attributes:
        momentum: the share of the last step's direction that is kept.
    """

    momentum: float

    @property
    def states(self) -> int:
        return int(self.momentum != 0)

    @property
    def kind(self) -> str:
        return "sgd with momentum" if self.momentum else "sgd"

    def problems(self, steps: int) -> list[str]:
        found = super().problems(steps)
        if not 0 <= self.momentum < 1:
            found.append(f"optimizer.momentum={self.momentum} is not in [0, 1): use 0 for none")
        return found


ADAM = AdamSettings("adam", 0.0, "constant", 0, [0.9, 0.999])
