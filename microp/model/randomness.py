"""Random numbers that depend only on (a layer's seed, step, microbatch).

They are the same for any partition and in a recomputation, so no state of a random generator has to be saved and
restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from microp.model.seeds import derive_seed


class Random(Protocol):
    """A part of a layer that draws random numbers."""

    def at(self, step: int, microbatch: int) -> None:
        """Set the step and the microbatch of the next forward."""


class Dropout(nn.Module):
    """Dropout with a generator of its own."""

    def __init__(self, probability: float, seed: int) -> None:
        super().__init__()
        self.probability, self.seed = probability, seed
        self._now = (0, 0)

    def at(self, step: int, microbatch: int) -> None:
        """Set the step and the microbatch of the next forward."""
        self._now = (step, microbatch)

    def forward(self, x: Tensor) -> Tensor:
        if self.probability == 0:
            return x
        generator = torch.Generator(x.device).manual_seed(derive_seed(self.seed, *self._now))
        keep = 1 - self.probability
        return x * torch.empty_like(x).bernoulli_(keep, generator=generator).div_(keep)


GENERATOR = Lock()  # torch's own generator is one for all threads, and ranks may be threads


class Reseeded:
    """Seeds torch's own generator before each forward of a layer that draws from it, as `nn.Dropout` does.

    Args:
        layer: the layer; the names of its weights stay as they are.
        seed: the layer's seed.
    """

    def __init__(self, layer: nn.Module, seed: int) -> None:
        self._seed, self._now = seed, (0, 0)
        layer.register_forward_pre_hook(self)
        layer.register_forward_hook(self._release, always_call=True)

    def at(self, step: int, microbatch: int) -> None:
        """Set the step and the microbatch of the next forward."""
        self._now = (step, microbatch)

    def __call__(self, _layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        GENERATOR.acquire()
        seed = derive_seed(self._seed, *self._now)
        if given[0].is_cuda:
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    @staticmethod
    def _release(*_: Any) -> None:
        GENERATOR.release()


def random_parts(layers: nn.Module) -> Iterator[Random]:
    """Yield the parts of layers whose `at` must be called before each forward."""
    for module in layers.modules():
        if isinstance(module, Dropout) and module.probability:
            yield module
        yield from (hook for hook in module._forward_pre_hooks.values() if isinstance(hook, Reseeded))
