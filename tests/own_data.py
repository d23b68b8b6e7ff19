"""Models with data of their own, for tests; outputs of some of their layers are views, and not in one piece."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from shapes import Does
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from microp.model import Layers


class Items(Dataset):
    """A data set whose items a function of their number makes."""

    def __init__(self, size: int, item: Callable[[int], Any]) -> None:
        self.size, self.item = size, item

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def image(index: int) -> tuple[Tensor, int]:
    return torch.full((2, 4, 4), index % 3 - 1.0) + torch.randn(2, 4, 4), index % 3


def images(size: int = 40) -> Layers:
    inside = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(3)]
    ends = [nn.Flatten(2), Does(lambda _, x: x.transpose(1, 2)), nn.Sequential(nn.Flatten(), nn.Linear(64, 3))]
    return Layers([nn.Conv2d(2, 4, 3, padding=1), *inside, *ends], F.cross_entropy, data=Items(size, image))


def few_images() -> Layers:
    return images(4)  # fewer than a batch has


def noise(step: int, rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 6) + step, torch.tensor([[random.random()] for _ in range(rows)])


def regression() -> Layers:
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), Does(lambda _, x: x[:, :4]), nn.Linear(4, 1)]
    return Layers(layers, F.mse_loss, data=noise)


def shuffled_later() -> Layers:
    """Each rank would have an order of its own in every step but the first."""
    orders: dict[tuple[int, int], Tensor] = {}

    def rows_in_order(step: int, rows: int) -> tuple[Tensor, Tensor]:
        numbers = torch.arange(6.0 * rows).view(rows, 6) / 100
        if step:
            order = torch.from_numpy(np.random.default_rng().permutation(rows))
            numbers = numbers[orders.setdefault((step, rows), order)]
        return numbers, numbers.sum(1, keepdim=True)

    return replace(regression(), data=rows_in_order)


def kept_order() -> Layers:
    """An order for each two steps, which follows from the step that first asks for it."""
    orders: dict[int, Tensor] = {}

    def rows_in_order(step: int, rows: int) -> tuple[Tensor, Tensor]:
        if step // 2 not in orders:
            orders[step // 2] = torch.randperm(100)
        numbers = orders[step // 2][torch.arange(step * rows, (step + 1) * rows) % 100, None] / torch.arange(1.0, 7)
        return numbers, numbers.sum(1, keepdim=True)

    return replace(regression(), data=rows_in_order)


def drawn_anew() -> Layers:
    numbers = torch.from_numpy(np.random.default_rng().standard_normal((50, 6), np.float32))
    return replace(regression(), data=TensorDataset(numbers, numbers.sum(1, keepdim=True)))
