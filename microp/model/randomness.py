"""Random numbers that depend only on (a layer's seed, step, microbatch).

They are the same for any partition and in a recomputation, so no state of a random generator has to be saved and
restored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for `path` under the run's seed, e.g. `derive_seed(0, "layer", 3)`."""
    digest = blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class Random:
    """A part of a layer that draws random numbers."""

    _now = (0, 0)

    def at(self, step: int, microbatch: int) -> None:
        """Set the step and the microbatch of the next forward."""
        self._now = (step, microbatch)


class Dropout(Random, nn.Module):
    """Dropout with a generator of its own."""

    def __init__(self, probability: float, seed: int) -> None:
        super().__init__()
        self.probability, self.seed = probability, seed

    def forward(self, x: Tensor) -> Tensor:
        if self.probability == 0:
            return x
        generator = torch.Generator(x.device).manual_seed(derive_seed(self.seed, *self._now))
        keep = 1 - self.probability
        return x * torch.empty_like(x).bernoulli_(keep, generator=generator).div_(keep)


GENERATOR = RLock()  # these generators are one for all threads, and ranks may be threads


def _seed_generators(seed: int, device: torch.device | None = None) -> None:
    """Seed the generators that torch (on a device, by default the CPU), numpy and Python have of their own."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def generator_states() -> tuple[Any, ...]:
    """Return the states of torch's, Python's and numpy's own generators, as values that can be compared."""
    with GENERATOR:  # not while another rank that is a thread makes its layers: it sets the states back
        state: Any = np.random.get_state()
        kind, numbers, *rest = state
        return torch.random.get_rng_state().numpy().tobytes(), random.getstate(), (kind, numbers.tobytes(), *rest)


@contextmanager
def seeded(seed: int) -> Iterator[Callable[[], bool]]:
    """Let torch's, numpy's and Python's own generators begin with a seed; afterwards they are as they were.

    Yields a function that returns whether one of them has been drawn from, while they are seeded or later.
    """
    before = torch.random.get_rng_state(), random.getstate(), np.random.get_state()
    _seed_generators(seed)
    begun = generator_states()
    ended: list[Any] = []
    try:
        yield lambda: (ended or [generator_states()])[0] != begun
    finally:
        ended.append(generator_states())
        torch.random.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


class Reseeded(Random):
    """Seeds the generators of torch, numpy and Python before each forward of a layer that draws from one."""

    def __init__(self, layer: nn.Module, seed: int) -> None:
        self._seed = seed
        layer.register_forward_pre_hook(self, prepend=True)  # the layer's own hooks may draw too

    def __call__(self, _layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        _seed_generators(derive_seed(self._seed, *self._now), given[0].device)


def random_parts(layers: nn.Module) -> Iterator[Random]:
    """Yield the parts of layers whose `at` must be called before each forward."""
    for module in layers.modules():
        if isinstance(module, Dropout) and module.probability:
            yield module
        yield from (hook for hook in module._forward_pre_hooks.values() if isinstance(hook, Reseeded))
