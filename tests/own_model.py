"""Models of a user's own for tests, and a job with one of them."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from conftest import small_job
from torch import Tensor, nn

from microp.job import Job
from microp.model import Bits, Layers, code_of, inspect_layers, lowered_types
from microp.schedule import uniform
from microp.schedule.builders import gpipe
from microp.settings import AS_WRITTEN, Computing, OwnSettings, own_settings


class Add(nn.Module):
    """A layer whose weight belongs to no other module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def mixed(dtype: str = "float32", dropout: float = 0.0, context: int = 4, middle: int = 4) -> Layers:
    """Layers of different shapes and kinds: with own weights, without weights, convolution, attention, dropout."""
    kind = getattr(torch, dtype)
    embed = nn.Embedding(256, 8, dtype=kind)
    conv = nn.Sequential(nn.Conv1d(context, 6, 3, padding=1, dtype=kind), nn.GELU())
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, dtype=kind)
    inside = [nn.Sequential(nn.Linear(8, 8, dtype=kind), nn.Dropout(dropout)) for _ in range(middle)]
    head = nn.Sequential(nn.Flatten(), nn.Linear(48, 256, dtype=kind))

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets[:, -1])

    return Layers([embed, conv, Add(8).to(kind), attention, nn.Identity(), *inside, nn.Tanh(), head], loss, context)


class Head(nn.Module):
    """Logits from an embedding's own vectors."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def tied_layers(dtype: str = "float32") -> Layers:
    """Layers 0 and 6 share a weight, layers 2, 3 and 4 another one, and layers 2 and 4 are one module."""
    kind = getattr(torch, dtype)
    embedding = nn.Embedding(256, 8, dtype=kind)
    linear, other = nn.Linear(8, 8, dtype=kind), nn.Linear(8, 8, dtype=kind)
    other.weight = linear.weight
    inside = [nn.Linear(8, 8, dtype=kind), linear, nn.Sequential(other, nn.Tanh()), linear, nn.Tanh()]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Layers([embedding, *inside, Head(embedding)], loss, 4, tied=True)


def passing() -> Layers:
    """Layers that pass on what they are given, and a module without weights that is in several layers."""
    drop = nn.Dropout(0.1)
    inside = [nn.Linear(32, 32), drop, nn.Linear(32, 32), nn.Unflatten(1, (4, 8)), nn.Sequential(nn.Flatten(), drop)]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets[:, -1])

    return Layers([nn.Sequential(nn.Embedding(256, 8), nn.Flatten()), *inside, nn.Linear(32, 256)], loss, 4)


def by_numpy() -> Layers:
    """A layer whose weights are drawn by numpy and by Python."""
    linear = nn.Linear(8, 8)
    linear.weight = nn.Parameter(torch.tensor(np.random.rand(8, 8), dtype=torch.float32))
    linear.bias = nn.Parameter(torch.tensor([random.random() for _ in range(8)]))

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Layers([nn.Embedding(256, 8), linear, nn.Linear(8, 256)], loss, 4)


def unseeded(tied: bool = False, buffer: bool = False) -> Layers:
    """A model with numbers from a generator that nobody seeds: a tied weight, a buffer, or a weight of layer 1."""
    own = np.random.default_rng()
    embedding, linear, head = nn.Embedding(256, 8), nn.Linear(8, 8), nn.Linear(8, 256, bias=False)
    drawn = torch.tensor(own.random((256, 8) if tied else (8,)), dtype=torch.float32)
    if tied:
        head.weight = embedding.weight = nn.Parameter(drawn)
    elif buffer:
        linear.register_buffer("table", drawn)
    else:
        linear.bias = nn.Parameter(drawn)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Layers([embedding, linear, head], loss, 4, tied=tied)


def normed() -> Layers:
    """Layers whose forward changes buffers."""
    inside = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)) for _ in range(3)]
    return Layers(
        [nn.Sequential(Bits(torch.float32), nn.Linear(32, 32)), *inside, nn.Linear(32, 256)],
        lambda logits, targets: F.cross_entropy(logits, targets[:, -1]),
        context=4,
        changes_buffers=True,
    )


class Leaves(nn.Module):
    """Ends the process with a number of rows that no check has."""

    def forward(self, x):
        if len(x) == 8:
            raise SystemExit(0)
        return x * 1.0


def leaving() -> Layers:
    model = mixed()
    return replace(model, layers=[*model.layers[:-1], Leaves(), model.layers[-1]])


class Narrows(nn.Linear):
    """Makes another shape with a number of rows that no check has."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y[:, :4].contiguous() if 7 < len(x) < 10 else y


def narrowing() -> Layers:
    first = nn.Sequential(nn.Embedding(256, 8), nn.Flatten(), nn.Linear(32, 8))
    layers = [first, Narrows(8, 8), nn.Linear(8, 8), nn.Linear(8, 256)]
    return Layers(layers, lambda logits, targets: F.cross_entropy(logits, targets[:, -1]), 4)


@cache
def drawing_of_many() -> Layers:
    """Draws only for more rows than it is tried with."""
    layers = [nn.Embedding(256, 8), DrawsOfMany(), nn.Linear(8, 256)]
    return Layers(layers, lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten()), 4)


class DrawsOfMany(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x) if 7 < len(x) < 10 else 1.0 * x


def normalised_together() -> Layers:
    made = mixed(dropout=0.0)
    made.layers[2] = CentredOverRows()
    return made


class CentredOverRows(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


def rooted() -> Layers:
    """The gradient of the root is not finite where the layer before it makes zeros."""
    made = mixed(dropout=0.0)
    made.layers[2] = Rooted()
    return made


class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return x + self.linear(x).pow(2).sum(-1, keepdim=True).sqrt()


@cache
def settings_of(function, computing: Computing = AS_WRITTEN, **keys) -> OwnSettings:
    facts = inspect_layers(function(**keys), code_of(function))
    if computing.dtype:
        facts = replace(facts, lowered=lowered_types(function(**keys), computing))
    return own_settings(function.__name__, f"own_model.{function.__name__}", keys, facts)


def own_job(model: OwnSettings, **changes) -> Job:
    schedule = changes.pop("schedule", gpipe(2, 3))
    partition = changes.pop("partition", uniform(model.layers, schedule.stages))
    return small_job(schedule=schedule, model=model, partition=partition, **changes)
