"""A model that a user's function makes.

::

    def layers(width: int) -> Layers:      the function: a list of layers and a loss
        return Layers([...], loss, context=16)

    on a rank   layers ── OwnModel.build ──► the rank's own layers
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from microp.model.layers import Gpt, Mlp, Model
from microp.model.randomness import GENERATOR, Reseeded, derive_seed, seeded
from microp.model.watch import tensor_text
from microp.settings import GptSettings, LayerFacts, ModelSettings, OwnSettings, RowForm, TiedWeight


@dataclass(frozen=True)
class Layers:
    """What a user's model function returns.

    Attributes:
        layers: the layers, each a module from one tensor to one tensor whose first size is the rows. The first one is
            given tokens (rows, context), int64, from 0 to vocabulary - 1; `Bits` makes numbers of bytes.
        loss: (output of the last layer, targets) -> the mean over the rows, one number. The targets (rows, context)
            hold the next token of each input token. The loss of a microbatch counts by its share of the batch's rows.
        context: the number of tokens in a row; not with `data`.
        changes_buffers: declares that a forward changes buffers, as BatchNorm does. They then change from one
            microbatch to the next.
        tied: declares that layers share weights, as `head.weight = embedding.weight` does. Each of these layers gets
            a copy of its own, and the gradients of the copies are summed before the optimizer's step.
        vocabulary: the number of different tokens, 256 for bytes.
        data: in place of text, (inputs, targets) that the first layer and the loss are given: a map-style `Dataset` of
            such pairs, each item once per epoch in an order that follows from the seed; or a function (step, rows) ->
            the inputs and the targets of a batch. What it draws from torch, `random` or numpy follows from the seed.
    """

    layers: Sequence[nn.Module] | nn.ModuleList | nn.Sequential
    loss: Callable[[Tensor, Tensor], Tensor]
    context: int = 0
    changes_buffers: bool = False
    tied: bool = False
    vocabulary: int = 256
    data: Dataset[Any] | Callable[[int, int], tuple[Tensor, Tensor]] | None = None


class OwnModel(Model):
    """The layers that a user's function makes.

    Every rank makes all layers and keeps its own ones, so that the weights do not depend on the partition.

    Raises:
        ValueError: the function is not the one that was checked.
    """

    def __init__(self, settings: OwnSettings) -> None:
        super().__init__(settings)
        self._settings: OwnSettings = settings
        self._function = resolve_name(settings.builder)
        if code_of(self._function) != settings.facts.code:
            raise ValueError(f"model.builder={settings.builder} has changed since it was checked: start the run again")
        self._made: Layers | None = None

    def build(self, indices: Iterable[int], seed: int) -> list[nn.Module]:
        with GENERATOR, seeded(derive_seed(seed, "layers")):
            made: Layers = self._function(**copy.deepcopy(self._settings.keys))  # it may change a list
        self._made = replace(made, layers=())
        layers = separated(made.layers, self._settings.tied_weights)
        held = {index: layers[index] for index in indices}
        _spoil(layers, {weight for layer in held.values() for weight in layer.parameters()})
        if self._settings.facts.random:  # any layer may draw only sometimes
            for index, layer in held.items():
                Reseeded(layer, derive_seed(seed, "random", index))
        return list(held.values())

    def layer(self, index: int, seed: int) -> nn.Module:
        return self.build([index], seed)[0]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        assert self._made is not None, "the layers are built first"
        return self._made.loss(logits, targets)

    @property
    def data(self) -> Any:
        if self._made is None and self._settings.facts.rows:
            self.build((), 0)
        return self._made.data if self._made else None

    def some_rows(self, rows: int) -> tuple[Tensor, Tensor]:
        return super().some_rows(rows) if self.data is None else own_rows(self.data, 0, rows, 0)


def own_rows(data: Any, step: int, rows: int, seed: int, facts: LayerFacts | None = None) -> tuple[Tensor, Tensor]:
    """Return the inputs and the targets of a step's batch from a model's own data, see `Layers`.

    Raises:
        ValueError: they are something else, or by the `facts` of the model have another form than those of its trial.
    """
    with GENERATOR, seeded(derive_seed(seed, "data", step)):
        if is_dataset(data):
            size, places = len(data), range(step * rows, (step + 1) * rows)  # each epoch has every item once
            made: Any = default_collate([data[int(_epoch(size, at // size, seed)[at % size])] for at in places])
        else:
            made = data(step, rows)
    pair = list(made) if isinstance(made, list | tuple) else []
    if len(pair) != 2 or not all(isinstance(each, Tensor) and each.shape[:1] == (rows,) for each in pair):
        said = (tensor_text(each) if isinstance(each, Tensor) else f"a {type(each).__name__}" for each in pair)
        kinds = ", ".join(said) or f"a {type(made).__name__}"
        raise ValueError(f"not two tensors of {rows} rows, (inputs, targets), but {kinds}")
    if facts and facts.rows and (forms := tuple(map(row_form, pair))) != facts.rows:
        now, before = ([f"{list(shape)} {dtype}" for shape, dtype in pair] for pair in (forms, facts.rows))
        raise ValueError(
            f"a row of step {step} is {' and '.join(now)} (input and target), and those of the trial were "
            f"{' and '.join(before)}: give all rows the same shape and type, for example by padding"
        )
    return pair[0], pair[1]


def row_form(tensor: Tensor) -> RowForm:
    return tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch.")


def is_dataset(data: Any) -> bool:
    """Return whether data are a map-style `Dataset`, and no function."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


@lru_cache(2)  # a batch may lie in two
def _epoch(size: int, epoch: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "epoch", epoch))
    return torch.randperm(size, generator=generator)


def _spoil(layers: Iterable[nn.Module], held: set[nn.Parameter]) -> None:
    """Make NaN of the trained weights of the other layers, so that nothing reads a copy that nobody trains unnoticed.

    They also need no memory any more.
    """
    for weight in {weight for layer in layers for weight in layer.parameters() if weight.requires_grad} - held:
        weight.data = torch.full((1,) * weight.dim(), nan, dtype=weight.dtype).expand(weight.shape)


def separated(layers: Iterable[nn.Module], tied: Iterable[TiedWeight]) -> list[nn.Module]:
    """Return layers of which each has its own copies of the weights and of the modules that they share."""
    copied = {layer for copies in tied for layer, _ in copies[1:]}
    known, apart = set[nn.Module](), []
    for index, layer in enumerate(layers):
        modules = set(layer.modules())
        apart.append(copy.deepcopy(layer) if index in copied else _without(layer, known))
        known |= modules
    return apart


def _without(module: nn.Module, known: set[nn.Module]) -> nn.Module:
    """Return a module with copies of those that are known; others stay, as copied weights lose their hooks."""
    if module in known:
        return copy.deepcopy(module)
    for name, inside in list(module.named_children()):
        if (own := _without(inside, known)) is not inside:
            setattr(module, name, own)
    return module


def code_of(function: Callable[..., Any]) -> str:
    """Return a digest of the source file of a function; an empty text if it has none."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
        return hashlib.sha256(Path(path or "").read_bytes()).hexdigest()[:12]
    except (OSError, TypeError, ValueError):
        return ""


def build_model(settings: ModelSettings) -> Model:
    """Return the model that the settings describe; no layer is built before `Model.build` is called."""
    if isinstance(settings, OwnSettings):
        return OwnModel(settings)
    return Gpt(settings) if isinstance(settings, GptSettings) else Mlp(settings)
