"""Small models as people write them, each with something in which a pipeline can go wrong. `self_checks` trains them.

::

    tokens (rows, CONTEXT) ─ embedding ─ the layer ─ dense ─ the layer ─ dense ─ head ─ logits (rows, CONTEXT, 256)
                                         ─────────           ─────────
                                         (rows, CONTEXT, WIDTH) in and out
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from microp.model import Layers

WIDTH, CONTEXT = 16, 4


def mean_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def around(
    make: Callable[[], nn.Module], loss: Callable[[Tensor, Tensor], Tensor] = mean_error, changes_buffers: bool = False
) -> Layers:
    """Return the model of the picture, with two such layers."""
    layers = [embedding(), make(), dense(), make(), dense(), head()]
    return Layers(layers, loss, CONTEXT, changes_buffers=changes_buffers)


def embedding() -> nn.Embedding:
    return nn.Embedding(256, WIDTH)


def linear(bias: bool = True) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, bias=bias)


def dense() -> nn.Sequential:
    return nn.Sequential(linear(), nn.Tanh())


def head() -> nn.Linear:
    return nn.Linear(WIDTH, 256)


class _FusedQkv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (linear(bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.linear(x, torch.cat([self.q.weight, self.k.weight, self.v.weight])).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True)


def fused_qkv() -> Layers:
    """Attention that reads the weights of its parts itself, for one product in place of three."""
    return around(_FusedQkv)


class _Product(torch.autograd.Function):
    """x Wᵀ + b; computes only the gradients that are asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        of_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


class _Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = linear()

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Product.apply(x, self.inside.weight, self.inside.bias)  # type: ignore[no-untyped-call]
        return torch.tanh(product)


def custom_function() -> Layers:
    """An autograd.Function that is given the weights of a part."""
    return around(_Custom)


class _Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = linear()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inside(x))
        x = torch.tanh(F.linear(x, self.inside.weight))
        return torch.tanh(self.inside(x) + x @ self.inside.weight)


def weight_several_times() -> Layers:
    """One weight four times on one path: by its part twice, read twice, once of these transposed."""
    return around(_Repeated)


class _LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.base = nn.LayerNorm(WIDTH).requires_grad_(False), linear().requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return torch.tanh(self.base(x) + self.up(self.down(x)))


def low_rank_on_frozen() -> Layers:
    """LoRA: the Linear and the norm are frozen, two thin matrices are trained."""
    return around(_LowRank)


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList([dense() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        best, chosen = self.gate(tokens).softmax(-1).max(-1)
        total = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().squeeze(-1)
            if len(places):
                part = expert(tokens.index_select(0, places)) * best.index_select(0, places).unsqueeze(-1)
                total = total.index_add(0, places, part)
        return x + total.view_as(x)


def experts_by_index() -> Layers:
    """A mixture of experts: the sizes inside depend on the numbers, and an expert may get no token."""
    return around(_Experts)


class _Passed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.shift = linear(), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inside(x) if random.random() < 0.5 else x + self.shift)


def passed_by_chance() -> Layers:
    """A part that is passed over by chance, as Python draws."""
    return around(_Passed)
