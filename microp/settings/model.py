"""The settings of the model: its size and form. `microp.model` builds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass
class ModelSettings(ABC):
    """The keys of every model.

    Attributes:
        name: the option's name in `conf/model/`.
        layers: the number of layers that are partitioned.
        dim: the width of the tensor between two layers; a multiple of 8 for mlp.
        dtype: `float32` or `float64`, for weights and activations.
    """

    name: str
    layers: int
    dim: int
    dtype: str

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """The number of input bytes in one row of a batch."""

    @abstractmethod
    def boundary(self, rows: int) -> tuple[int, ...]:
        """Return the shape of the tensor between any two layers, for `rows` rows."""

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        found = [
            f"model.{key}={value} is below 1: use at least 1"
            for key in ("layers", "dim")
            if (value := getattr(self, key)) < 1
        ]
        if self.dtype not in ("float32", "float64"):
            found.append(f"model.dtype={self.dtype} is not supported: use float32 or float64")
        return found


@dataclass
class MlpSettings(ModelSettings):
    """A chain of Linear layers that predicts the byte after `dim / 8` bytes."""

    @property
    def row_bytes(self) -> int:
        return self.dim // 8

    def boundary(self, rows: int) -> tuple[int, ...]:
        return (rows, self.dim)

    def problems(self) -> list[str]:
        found = super().problems()
        if self.dim % 8 or self.dim < 8:
            found.append(f"model.dim={self.dim} is not a positive multiple of 8, the bits of a byte: use e.g. 64")
        return found


@dataclass
class GptSettings(ModelSettings):
    """A decoder-only transformer over bytes.

    Attributes:
        heads: the number of attention heads per block; it must divide `dim`.
        context: the number of bytes per row, which is also the range of attention.
        dropout: the probability of dropout, after the embedding and on both branches of a block.
    """

    heads: int
    context: int
    dropout: float

    @property
    def row_bytes(self) -> int:
        return self.context

    def boundary(self, rows: int) -> tuple[int, ...]:
        return (rows, self.context, self.dim)

    def problems(self) -> list[str]:
        found = super().problems()
        if self.heads < 1 or self.dim % self.heads:
            found.append(f"model.heads={self.heads} does not divide model.dim={self.dim}: use a divisor of model.dim")
        if self.context < 1:
            found.append(f"model.context={self.context} is below 1: use at least 1")
        if not 0 <= self.dropout < 1:
            found.append(f"model.dropout={self.dropout} is not in [0, 1): use 0 for no dropout")
        return found
