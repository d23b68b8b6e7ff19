"""The settings of the model: its size and form, and how its layers compute. `microp.model` builds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import prod
from typing import Annotated, Any

from microp.settings.rules import Name, OneOf, Range, broken_rules
from microp.system import BYTES, override

LOWERED = {"bf16": "bfloat16"}  # a value of the key `dtype` -> torch's name of the type
TiedWeight = tuple[tuple[int, str], ...]
"""The copies of one weight: for each the index of its layer and its name there, in the order of the layers."""
LayerWork = tuple[float, float, int]
"""The floating-point operations of a layer's forward and of its whole backward per row, and the number of weights that
it reads: no embedding. A backward without gradient of the layer's input has fewer, as autograd leaves them out."""
_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number
_SIZES |= {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
RowForm = tuple[tuple[int, ...], str]
"""The shape and the type of a tensor of one row."""


@dataclass(frozen=True)
class Computing:
    """How the layers compute; its fields are keys of the configuration."""

    # `bf16`: products in bf16 by autocast, with weights and their gradients in float32; None: everything in the
    # model's own type
    dtype: str | None = None
    compile: bool = False  # whether the layers are compiled by torch.compile

    @property
    def words(self) -> list[str]:
        """The keys with another value than by default, as they are typed."""
        return [override(key, value) for key, value in asdict(self).items() if value]

    def difference(self, other: Computing) -> str | None:
        """Return the first difference as `dtype=bf16, this run has dtype=null`; None if there is none."""
        mine, theirs = ([override(*item) for item in asdict(computing).items()] for computing in (self, other))
        return next((f"{a}, this run has {b}" for a, b in zip(mine, theirs, strict=True) if a != b), None)

    def problems(self, model: str, dtype: str) -> list[str]:
        """List what is wrong with these values for a model of this name and with this type of its weights."""
        if self.dtype not in LOWERED or dtype == "float32":
            return []
        return [
            f"dtype={self.dtype} needs weights in float32, and those of model={model} are in {dtype}: use dtype=null, "
            "or a model in float32"
        ]


AS_WRITTEN = Computing()


@dataclass(frozen=True)
class LayerFacts:
    """What is known of the layers that a user's function makes, from a run of a few rows."""

    context: int  # the number of tokens in one row of a batch; 0 with data of the model's own
    dtype: str  # the type of the tensors between layers
    # of the tensor that enters each layer, without its rows; that of layer 0 are the tokens
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]  # for each layer, the index of the first one that equals it
    weights: int  # the number of weights of all layers
    random: tuple[int, ...]  # the layers that draw random numbers, for example by dropout
    changes_buffers: bool  # whether a forward changes buffers, as the function has declared
    code: str  # a digest of the source file of the function
    tied: tuple[TiedWeight, ...] = ()  # the weights that several layers share, as the function has declared
    vocabulary: int = BYTES  # the number of different tokens, as the function has declared
    # the type of the tensor that enters each layer under autocast; empty if it was not asked for
    lowered: tuple[str, ...] = ()
    work: tuple[LayerWork, ...] = ()  # what each layer computes and reads; empty if it is not known
    trained: int = 0  # the number of weights of all layers that are not frozen
    frozen: tuple[int, ...] = ()  # the layers that have no weight that is trained
    as_one: tuple[int, ...] | None = None  # the layers whose backward can only be divided as one; None: not tried
    undivided: tuple[str, ...] = ()  # why layers cannot be divided into I and W at all, one sentence each
    data: str = ""  # a checksum of some rows of the model's own data; a run with others is another one
    rows: tuple[RowForm, RowForm] | None = None  # inputs and targets of the model's own data; None: it is given text
    output: RowForm | None = None  # what the last layer makes of a row
    mixing: tuple[int, ...] = ()  # the layers whose rows depend on each other; empty also if that was not tried
    scattered: tuple[int, ...] = ()  # the layers whose output does not lie in one piece of memory
    unsaved: tuple[str, ...] = ()  # which layers change in a forward what is not in their state_dict, and what that is


@dataclass
class ModelSettings(ABC):
    """The keys of every model."""

    name: Annotated[str, Name()]  # the option's name in `conf/model/`
    layers: Annotated[int, Range(1, 100_000)]  # the number of layers that are partitioned
    # the width of the tensor between two layers, for mlp a multiple of 8, by default 64 with device=emulated
    dim: Annotated[int, Range(1, 1_000_000)]
    dtype: Annotated[str, OneOf("float32", "float64")]  # `float32` or `float64`, for weights and activations

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """The number of input bytes in one row of a batch."""

    @property
    @abstractmethod
    def weights(self) -> int:
        """The number of weights of all layers."""

    @property
    def trained(self) -> int:
        """The number of weights that are not frozen."""
        return self.weights

    @property
    def frozen(self) -> tuple[int, ...]:
        """The layers that have no weight that is trained."""
        return self.facts.frozen

    @property
    def first_trained(self) -> int:
        """The first layer with a weight that is trained: those before it have no backward."""
        return next(layer for layer in range(self.layers + 1) if layer not in self.frozen)

    vocabulary = BYTES  # the number of different tokens; a class may have it as a key
    # nothing of one of microp's models has to be found out
    facts = LayerFacts(0, "", (), (), 0, (), False, "")

    @abstractmethod
    def work(self, layer: int) -> LayerWork:
        """Return what a layer computes and reads."""

    @property
    def weight_bytes(self) -> int:
        """The size of one weight."""
        return _SIZES[self.dtype]

    @property
    def asked(self) -> dict[str, Any]:
        """The model as a configuration asks for it: the option's name and its keys."""
        return dict(vars(self))

    @property
    def identity(self) -> dict[str, Any]:
        """What two runs of the same model have in common."""
        return self.asked

    @property
    def kinds(self) -> tuple[int, ...]:
        """For each layer, the index of the first layer that equals it: only the first and the last are of their own."""
        last = self.layers - 1
        return tuple(index if index in (0, last) else 1 for index in range(self.layers))

    @property
    def tied_weights(self) -> tuple[TiedWeight, ...]:
        """The weights that several layers share; each of these layers has a copy of its own."""
        return self.facts.tied

    @property
    def draws(self) -> bool:
        """Whether a forward draws random numbers."""
        return bool(self.facts.random)

    @property
    def row_forms(self) -> tuple[RowForm, RowForm]:
        """The shape and the type of a row's inputs, and those of its targets."""
        return self.facts.rows or (((self.row_bytes,), "int64"), ((self.row_bytes,), "int64"))

    def batch_bytes(self, rows: int) -> tuple[int, int]:
        """Return the bytes of a batch's inputs, on the rank of the first stage, and of its targets, on the last's."""
        inputs, targets = (rows * prod(shape) * _SIZES[dtype] for shape, dtype in self.row_forms)
        return inputs, targets

    def hop_bytes(self, sizes: Sequence[int], computing: Computing) -> float:
        """Return the mean bytes per row of the tensors between stages with these numbers of layers."""
        enters = list(accumulate(sizes))[:-1] or [self.layers - 1]
        return sum(prod(self.boundary(1, at)) * _SIZES[self.entering(at, computing)] for at in enters) / len(enters)

    def of_slice(self, slices: int) -> ModelSettings:
        """Return the settings of one of the `slices` slices of a row, with fewer tokens."""
        assert slices == 1
        return self

    @property
    def layers_text(self) -> str:
        """The number of layers, as it was asked for."""
        return f"model.layers={self.layers}"

    def segment_problems(self, segments: int) -> list[str]:
        """Return what is wrong with a number of segments: at most one sentence, if the model has fewer layers."""
        if not segments > self.layers > 0:
            return []
        return [f"checkpointing.segments={segments} is more than {self.layers_text}: use at most {self.layers}"]

    def slice_problems(self, slices: int) -> list[str]:
        """List why a row cannot be divided into so many slices along its tokens, one sentence each."""
        if slices == 1:
            return []
        return [
            f"schedule.slices={slices} divides the tokens of a row, and the layers of model={self.name} keep no keys "
            "and values of the slices before: use model=gpt, or a schedule without slices, as 1f1b"
        ]

    @abstractmethod
    def boundary(self, rows: int, layer: int) -> tuple[int, ...]:
        """Return the shape of the tensor that enters a layer, which is not the first one, for `rows` rows."""

    @abstractmethod
    def entering(self, layer: int, computing: Computing) -> str:
        """Return torch's name of the type of the tensor that enters a layer, which is not the first one."""

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        return broken_rules(self, "model.")


@dataclass
class MlpSettings(ModelSettings):
    """A chain of Linear layers that predicts the byte after `dim / 8` bytes."""

    @property
    def row_bytes(self) -> int:
        return self.dim // 8

    @property
    def weights(self) -> int:
        return (self.dim + 1) * (self.dim * (self.layers - 1) + BYTES)

    def work(self, layer: int) -> LayerWork:
        made = BYTES if layer == self.layers - 1 else self.dim
        flops = 2.0 * self.dim * made
        return flops, flops * (1 if layer == 0 else 2), (self.dim + 1) * made

    def boundary(self, rows: int, layer: int) -> tuple[int, ...]:
        return (rows, self.dim)

    def entering(self, layer: int, computing: Computing) -> str:
        return LOWERED[computing.dtype] if computing.dtype else self.dtype  # a Linear makes it

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.dim % 8 and self.dim > 0:
            problems.append(f"model.dim={self.dim} is not a positive multiple of 8, the bits of a byte: use e.g. 64")
        return problems


@dataclass
class GptSettings(ModelSettings):
    """A decoder-only transformer over bytes, or over tokens of one's own."""

    heads: int  # the number of attention heads per block; it must divide `dim`
    context: Annotated[int, Range(1, 1_000_000)]  # the number of bytes per row, which is also the range of attention
    dropout: float  # the probability of dropout, after the embedding and on both branches of a block
    vocabulary: Annotated[int, Range(2, 1_000_000)] = BYTES  # the number of different tokens, 256 for bytes
    tied: bool = False  # let the embedding and the head have one weight, whose gradients are summed across their stages

    @property
    def draws(self) -> bool:
        return self.dropout > 0

    @property
    def identity(self) -> dict[str, Any]:
        added = {"vocabulary": BYTES, "tied": False}  # keys that came later: runs with these values keep their ids
        return {key: value for key, value in self.asked.items() if key not in added or added[key] != value}

    @property
    def tied_weights(self) -> tuple[TiedWeight, ...]:
        head = 2 if self.layers > 1 else 3  # in the last layer, after the block and its norm
        return (((0, "0.byte"), (self.layers - 1, f"{head}.weight")),) if self.tied else ()

    @property
    def row_bytes(self) -> int:
        return self.context

    @property
    def weights(self) -> int:
        block, last = self.work(0)[-1], self.work(self.layers - 1)[-1]
        return (self.vocabulary + self.context) * self.dim + (self.layers - 1) * block + last

    def work(self, layer: int) -> LayerWork:
        """A token takes two operations per weight of a product, and its products with all tokens of its row.

        The first layer's block passes a gradient on too, to the embedding before it.
        """
        flops = self.context * (24.0 * self.dim**2 + 4.0 * self.context * self.dim)
        weights = 12 * self.dim**2 + 13 * self.dim  # two norms, attention (3 + 1) dim x dim, the widened mlp (4 + 4)
        if layer == self.layers - 1:
            flops += 2.0 * self.context * self.dim * self.vocabulary
            weights += (self.vocabulary + 2) * self.dim + self.vocabulary
        return flops, 2 * flops, weights

    def of_slice(self, slices: int) -> GptSettings:
        return replace(self, context=self.context // slices)

    def slice_problems(self, slices: int) -> list[str]:
        problems = []
        if self.context % slices:
            most = max(count for count in range(1, slices) if self.context % count == 0)
            problems.append(f"schedule.slices={slices} does not divide model.context={self.context}: use {most}")
        if slices > 1 and self.dropout > 0:
            problems.append(
                f"model.dropout={self.dropout} draws for a whole row, and schedule.slices={slices} divides it: "
                "use model.dropout=0"
            )
        return problems

    def boundary(self, rows: int, layer: int) -> tuple[int, ...]:
        return (rows, self.context, self.dim)

    def entering(self, layer: int, computing: Computing) -> str:
        return self.dtype  # a block adds to its input, which begins as vectors in this type

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.dim > 0 and (self.heads < 1 or self.dim % self.heads):
            problems.append(f"model.heads={self.heads} does not divide model.dim={self.dim}: use a divisor of it")
        if not 0 <= self.dropout < 1:
            problems.append(f"model.dropout={self.dropout} is not in [0, 1): use 0 for no dropout")
        return problems


MODELS: dict[str, type[ModelSettings]] = {"mlp": MlpSettings, "gpt": GptSettings}
"""The name of each model that is built in -> its class."""


@dataclass
class OwnSettings(ModelSettings):
    """A model whose layers a user's function makes. `own_settings` makes it."""

    builder: str  # the function's dotted path
    keys: dict[str, Any]  # the arguments of the function
    facts: LayerFacts  # what is known of its layers

    @property
    def layers_text(self) -> str:
        return f"the layers of model={self.name}"

    @property
    def asked(self) -> dict[str, Any]:
        return {"name": self.name, "builder": self.builder, **self.keys}

    @property
    def identity(self) -> dict[str, Any]:
        data = {"data": self.facts.data} if self.facts.data else {}
        return {**self.asked, "code": self.facts.code, **data}

    @property
    def row_bytes(self) -> int:
        return self.facts.context

    @property
    def weights(self) -> int:
        return self.facts.weights

    def work(self, layer: int) -> LayerWork:
        return self.facts.work[layer] if self.facts.work else (0.0, 0.0, 0)

    @property
    def trained(self) -> int:
        return self.facts.trained

    @property
    def kinds(self) -> tuple[int, ...]:
        return self.facts.kinds

    def boundary(self, rows: int, layer: int) -> tuple[int, ...]:
        return (rows, *self.facts.shapes[layer])

    def entering(self, layer: int, computing: Computing) -> str:
        return self.facts.lowered[layer] if computing.dtype else self.dtype

    def problems(self) -> list[str]:
        return []


def own_settings(name: str, builder: str, keys: dict[str, Any], facts: LayerFacts) -> OwnSettings:
    """Return the settings of a user's model."""
    dim = facts.shapes[-1][-1] if facts.shapes[-1] else 0
    made = OwnSettings(name, len(facts.shapes), dim, facts.dtype, builder, keys, facts)
    made.vocabulary = facts.vocabulary
    return made
