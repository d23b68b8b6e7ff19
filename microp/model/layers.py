"""Models as lists of layers, of which a rank builds only those it holds.

::

    mlp   bytes ─ bits ─[Linear ReLU]─[Linear ReLU]─ ... ─[Linear]─ logits of the next byte
    gpt   bytes ─[embed, block]─[block]─ ... ─[block, norm, head]─ logits of each next byte
                  layer 0         1              layers - 1

Layer i depends only on (seed, i), so any partition has the monolith's weights, bit for bit, and
no rank builds more than its own layers. Layers are built on the CPU and then moved, so the
weights do not depend on the device either.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from microp.model.randomness import Dropout, derive_seed
from microp.model.slices import Sliced
from microp.settings import Computing, GptSettings, LayerFacts, ModelSettings


class Model(ABC):
    """Builds the layers of one model."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self.layers, self.dim, self.vocabulary = settings.layers, settings.dim, settings.vocabulary
        self.dtype: torch.dtype = getattr(torch, settings.dtype)

    def build(self, indices: Iterable[int], seed: int) -> list[nn.Module]:
        """Build the layers with these indices on the CPU."""
        return [self.layer(index, seed) for index in indices]

    @abstractmethod
    def layer(self, index: int, seed: int) -> nn.Module:
        """Build layer `index` on the CPU, with weights that follow from `seed` and `index`."""

    def sample(self, index: int, rows: int, computing: Computing) -> Tensor:
        """Return an input of layer `index` of random numbers, the same in each call: tokens for the first layer."""
        settings, generator = self._settings, torch.Generator().manual_seed(index)
        if index == 0:
            return self.some_rows(rows)[0]
        dtype: torch.dtype = getattr(torch, settings.entering(index, computing))
        return torch.randn(settings.boundary(rows, index), generator=generator).to(dtype)

    def some_rows(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets to try things with: random tokens, the same in each call."""
        generator, settings = torch.Generator().manual_seed(0), self._settings
        tokens = torch.randint(0, settings.vocabulary, (rows, settings.row_bytes), generator=generator)
        return tokens, tokens

    @property
    def data(self) -> Any:
        """The model's own data, see `Layers`; None if it is given text or tokens."""
        return None

    @property
    def facts(self) -> LayerFacts:
        """What is known of the layers of a user's own, their data and their loss."""
        return self._settings.facts

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the rows; `targets` (rows, row_bytes) holds the next byte of each input byte."""


class Mlp(Model):
    """A chain of Linear layers with ReLUs between them, which predicts the byte after `dim / 8` bytes.

    The input is the row's bits as -1 and 1: `dim` numbers, so that all layers but the last
    have the same shape.
    """

    def layer(self, index: int, seed: int) -> nn.Module:
        generator = torch.Generator().manual_seed(derive_seed(seed, "layer", index))
        last = index == self.layers - 1
        modules: list[nn.Module] = [Bits(self.dtype)] if index == 0 else []
        std = math.sqrt((1 if last else 2) / self.dim)  # He et al., arXiv 1502.01852
        modules.append(_linear(self.dim, self.vocabulary if last else self.dim, std, generator, self.dtype))
        if not last:
            modules.append(nn.ReLU())
        return nn.Sequential(*modules)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets[:, -1])


class Gpt(Model):
    """A decoder-only transformer with pre-norm blocks (Radford et al. 2019) over bytes."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__(settings)
        self.heads, self.context = settings.heads, settings.context
        self.dropout, self.tied = settings.dropout, settings.tied

    def layer(self, index: int, seed: int) -> nn.Module:
        layer_seed = derive_seed(seed, "layer", index)
        generator = torch.Generator().manual_seed(layer_seed)
        modules: list[nn.Module] = []
        if index == 0:
            modules.append(Embedding(self, generator, derive_seed(layer_seed, "embedding")))
        modules.append(Block(self, generator, layer_seed))
        if index == self.layers - 1:
            modules.append(nn.LayerNorm(self.dim, dtype=self.dtype))
            head = _linear(self.dim, self.vocabulary, 0.02, generator, self.dtype)
            if self.tied:
                first = torch.Generator().manual_seed(derive_seed(seed, "layer", 0))
                head.weight = _vectors(self.vocabulary, self, first)  # as the embedding in layer 0 draws its own
            modules.append(head)
        return nn.Sequential(*modules)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Bits(nn.Module):
    """Converts bytes (rows, n) into their bits as -1 and 1 (rows, 8 n)."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.places: Tensor
        self.register_buffer("places", torch.arange(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        bits = (x.unsqueeze(-1) >> self.places) & 1
        return bits.flatten(1).to(self.dtype) * 2 - 1


class Embedding(Sliced):
    """Maps tokens (rows, context) to vectors (rows, context, dim): the token's vector plus its position's."""

    def __init__(self, model: Gpt, generator: torch.Generator, seed: int) -> None:
        super().__init__()
        self.byte, self.place = (_vectors(count, model, generator) for count in (model.vocabulary, model.context))
        self.dropout = Dropout(model.dropout, seed)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        first = self.unit % self.slices * tokens
        place = self.place if self.slices == 1 else self.place[first : first + tokens]
        return self.dropout(F.embedding(x, self.byte) + place)


class Block(Sliced):
    """A transformer block: x + attention(norm(x)), then x + mlp(norm(x)); (rows, context, dim) in and out."""

    def __init__(self, model: Gpt, generator: torch.Generator, seed: int) -> None:
        super().__init__()
        dim, dtype = model.dim, model.dtype
        into, out = 0.02, 0.02 / math.sqrt(2 * model.layers)  # smaller for the last Linear of each branch
        self.heads = model.heads
        self.norm_attention = nn.LayerNorm(dim, dtype=dtype)
        self.query_key_value = _linear(dim, 3 * dim, into, generator, dtype)
        self.project = _linear(dim, dim, out, generator, dtype)
        self.norm_mlp = nn.LayerNorm(dim, dtype=dtype)
        self.widen = _linear(dim, 4 * dim, into, generator, dtype)
        self.narrow = _linear(4 * dim, dim, out, generator, dtype)
        self.dropout_attention = Dropout(model.dropout, derive_seed(seed, "attention"))
        self.dropout_mlp = Dropout(model.dropout, derive_seed(seed, "mlp"))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout_attention(self._attention(self.norm_attention(x)))
        return x + self.dropout_mlp(self.narrow(F.gelu(self.widen(self.norm_mlp(x)))))

    def _attention(self, x: Tensor) -> Tensor:
        rows, context, dim = x.shape
        split = self.query_key_value(x).view(rows, context, 3, self.heads, dim // self.heads)
        query, key, value = heads = split.permute(2, 0, 3, 1, 4)
        if self.slices == 1:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = self.past.attend(self.unit, query, heads[1:])
        return self.project(mixed.transpose(1, 2).reshape(rows, context, dim))


def _vectors(count: int, model: Gpt, generator: torch.Generator) -> nn.Parameter:
    """Return `count` normally distributed vectors of the model's width from `generator`."""
    return nn.Parameter(torch.empty(count, model.dim, dtype=model.dtype).normal_(0, 0.02, generator=generator))


def _linear(inputs: int, outputs: int, std: float, generator: torch.Generator, dtype: torch.dtype) -> nn.Linear:
    """Return a Linear with normally distributed weights from `generator` and zero bias."""
    linear = nn.Linear(inputs, outputs, device="meta", dtype=dtype)  # `to_empty` would import 500 modules
    linear.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=dtype).normal_(0, std, generator=generator))
    linear.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype))
    return linear
