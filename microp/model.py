"""The subject: models as lists of layers, of which a rank builds only its own.

::

    mlp   bytes ─ bits ─[Linear ReLU]─[Linear ReLU]─ ... ─[Linear]─ logits of the next byte
    gpt   bytes ─[embed, block]─[block]─ ... ─[block, norm, head]─ logits of each next byte
                  layer 0         1              layers - 1

Layer i is made from (seed, i) alone: any partition has the monolith's weights, bit for
bit, and no rank ever holds more than its layers. Layers are made on the CPU and moved, so
that the device does not matter either.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from microp.seeding import derive_seed

BYTES = 256  # the vocabulary of every model


@dataclass
class Model(ABC):
    """What a model is made of, not the model itself.

    Attributes:
        name: the option's name in `conf/model/`.
        layers: how many layers there are to partition.
        dim: the width of the tensor between two layers.
        dtype: `float32` or `float64`, of weights and activations.
    """

    name: str
    layers: int
    dim: int
    dtype: str

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """How many bytes of input one row of a batch has."""

    @abstractmethod
    def boundary(self, rows: int) -> tuple[int, ...]:
        """The shape of the tensor between any two layers, for `rows` rows."""

    @abstractmethod
    def layer(self, index: int, seed: int) -> nn.Module:
        """Layer `index` of the model that `seed` makes, on the CPU, in `dtype`."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats; `targets` (rows, row_bytes) are each byte's successor."""

    @property
    def torch_dtype(self) -> torch.dtype:
        return {"float32": torch.float32, "float64": torch.float64}[self.dtype]

    def problems(self) -> list[str]:
        """What is wrong with these numbers, a sentence each."""
        found = [
            f"model.{key}={value} is below 1: use at least 1"
            for key in ("layers", "dim")
            if (value := getattr(self, key)) < 1
        ]
        if self.dtype not in ("float32", "float64"):
            found.append(f"model.dtype={self.dtype} is not a type microp trains in: use float32 or float64")
        return found


@dataclass
class Mlp(Model):
    """`layers` Linear layers with ReLUs between them; predicts the byte after `dim / 8` bytes.

    The input is the row's bits as -1 and 1: `dim` numbers, so that all layers but the last
    are alike.
    """

    @property
    def row_bytes(self) -> int:
        return self.dim // 8

    def boundary(self, rows: int) -> tuple[int, ...]:
        return (rows, self.dim)

    def layer(self, index: int, seed: int) -> nn.Module:
        generator = torch.Generator().manual_seed(derive_seed(seed, "layer", index))
        last = index == self.layers - 1
        modules: list[nn.Module] = [Bits(self.torch_dtype)] if index == 0 else []
        std = math.sqrt((1 if last else 2) / self.dim)  # He et al., arXiv 1502.01852
        modules.append(_linear(self.dim, BYTES if last else self.dim, std, generator, self.torch_dtype))
        if not last:
            modules.append(nn.ReLU())
        return nn.Sequential(*modules)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets[:, -1])

    def problems(self) -> list[str]:
        found = super().problems()
        if self.dim % 8 or self.dim < 8:
            found.append(f"model.dim={self.dim} is not a multiple of 8, one for each bit of a byte")
        return found


@dataclass
class Gpt(Model):
    """A decoder-only transformer with pre-norm blocks (Radford et al. 2019) over bytes.

    Attributes:
        heads: attention heads a block; must divide `dim`.
        context: bytes a row, the longest distance attention sees.
        dropout: probability, after the embedding and on both branches of a block.
    """

    heads: int
    context: int
    dropout: float

    @property
    def row_bytes(self) -> int:
        return self.context

    def boundary(self, rows: int) -> tuple[int, ...]:
        return (rows, self.context, self.dim)

    def layer(self, index: int, seed: int) -> nn.Module:
        layer_seed = derive_seed(seed, "layer", index)
        generator = torch.Generator().manual_seed(layer_seed)
        modules: list[nn.Module] = []
        if index == 0:
            modules.append(Embedding(self, generator, derive_seed(layer_seed, "embedding")))
        modules.append(Block(self, generator, layer_seed))
        if index == self.layers - 1:
            modules.append(nn.LayerNorm(self.dim, dtype=self.torch_dtype))
            modules.append(_linear(self.dim, BYTES, 0.02, generator, self.torch_dtype))
        return nn.Sequential(*modules)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def problems(self) -> list[str]:
        found = super().problems()
        if self.heads < 1 or self.dim % self.heads:
            found.append(f"model.heads={self.heads} does not divide model.dim={self.dim}")
        if self.context < 1:
            found.append(f"model.context={self.context} is below 1: use at least 1")
        if not 0 <= self.dropout < 1:
            found.append(f"model.dropout={self.dropout} is not in [0, 1): 0 switches it off")
        return found


class Bits(nn.Module):
    """Bytes (rows, n) to their bits as -1 and 1 (rows, 8 n)."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.places: Tensor
        self.register_buffer("places", torch.arange(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        bits = (x.unsqueeze(-1) >> self.places) & 1
        return bits.flatten(1).to(self.dtype) * 2 - 1


class Embedding(nn.Module):
    """Bytes (rows, context) to vectors (rows, context, dim): of the byte plus of its place."""

    def __init__(self, model: Gpt, generator: torch.Generator, seed: int) -> None:
        super().__init__()
        self.byte, self.place = (
            nn.Parameter(torch.empty(count, model.dim, dtype=model.torch_dtype).normal_(0, 0.02, generator=generator))
            for count in (BYTES, model.context)
        )
        self.dropout = Dropout(model.dropout, seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(F.embedding(x, self.byte) + self.place)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); (rows, context, dim) in and out."""

    def __init__(self, model: Gpt, generator: torch.Generator, seed: int) -> None:
        super().__init__()
        dim, dtype = model.dim, model.torch_dtype
        into, out = 0.02, 0.02 / math.sqrt(2 * model.layers)  # smaller where a branch joins
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
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(rows, context, dim))


class Dropout(nn.Module):
    """Dropout whose mask follows from (its seed, step, microbatch) and nothing else.

    So it is the same on any partition and in a recomputation, with no state of a random
    generator to be kept or put back.
    """

    def __init__(self, probability: float, seed: int) -> None:
        super().__init__()
        self.probability, self.seed = probability, seed
        self._now = (0, 0)

    def at(self, step: int, microbatch: int) -> None:
        """Say for which step and microbatch the next forward is."""
        self._now = (step, microbatch)

    def forward(self, x: Tensor) -> Tensor:
        if self.probability == 0:
            return x
        generator = torch.Generator(x.device).manual_seed(derive_seed(self.seed, *self._now))
        keep = 1 - self.probability
        return x * torch.empty_like(x).bernoulli_(keep, generator=generator).div_(keep)


def _linear(inputs: int, outputs: int, std: float, generator: torch.Generator, dtype: torch.dtype) -> nn.Linear:
    """A Linear with normal weights from `generator` and a bias of zero."""
    linear = nn.Linear(inputs, outputs, device="meta", dtype=dtype).to_empty(device="cpu")
    with torch.no_grad():
        linear.weight.normal_(0, std, generator=generator)
        linear.bias.zero_()
    return linear
