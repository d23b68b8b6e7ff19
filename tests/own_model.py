"""Models of a user's own for tests, and a job with one of them."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
import training
from conftest import small_job
from shapes import Does
from threads import in_threads
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from microp.config.prediction import layer_memory
from microp.job import Job
from microp.model import Bits, Layers, code_of, inspect_layers, lowered_types
from microp.profiling import peak_memory_mib
from microp.schedule import uniform
from microp.schedule.builders import gpipe
from microp.settings import AS_WRITTEN, Computing, OwnSettings, own_settings


def of_last(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets[:, -1])


def of_all(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def mixed(dtype: str = "float32", dropout: float = 0.0, context: int = 4, middle: int = 4) -> Layers:
    """Layers of different shapes and kinds: with own weights, without weights, convolution, attention, dropout."""
    kind = getattr(torch, dtype)
    embed = nn.Embedding(256, 8, dtype=kind)
    conv = nn.Sequential(nn.Conv1d(context, 6, 3, padding=1, dtype=kind), nn.GELU())
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, dtype=kind)
    inside = [nn.Sequential(nn.Linear(8, 8, dtype=kind), nn.Dropout(dropout)) for _ in range(middle)]
    head = nn.Sequential(nn.Flatten(), nn.Linear(48, 256, dtype=kind))
    shifted = Does(lambda own, x: x + own.shift, shift=nn.Parameter(torch.zeros(8, dtype=kind)))
    layers = [embed, conv, shifted, attention, nn.Identity(), *inside, nn.Tanh(), head]
    return Layers(layers, of_last, context)


def tied_layers(dtype: str = "float32") -> Layers:
    """Layers 0 and 6 share a weight, layers 2, 3 and 4 another one, and layers 2 and 4 are one module."""
    kind = getattr(torch, dtype)
    embedding = nn.Embedding(256, 8, dtype=kind)
    linear, other = nn.Linear(8, 8, dtype=kind), nn.Linear(8, 8, dtype=kind)
    other.weight = linear.weight
    inside = [nn.Linear(8, 8, dtype=kind), linear, nn.Sequential(other, nn.Tanh()), linear, nn.Tanh()]
    head = Does(lambda own, x: F.linear(x, own.weight), weight=embedding.weight)
    return Layers([embedding, *inside, head], of_all, 4, tied=True)


def chosen(dtype: str = "float64") -> Layers:
    """Experts, each for rows of its own: the first for most, the second for one row in a batch, the third for none."""
    kind = getattr(torch, dtype)

    def experts(own: nn.Module, x: Tensor) -> Tensor:
        number = x[..., 0].round().long()  # the choice, which the embedding makes
        y = torch.zeros_like(x)
        for index, expert in enumerate((own.first, own.second, own.third)):
            if (number == index).any():
                y = torch.where((number == index)[..., None], F.linear(x, expert), y)
        return x + y

    embed = nn.Embedding(256, 8, dtype=kind)
    with torch.no_grad():
        embed.weight[:, 0] = (torch.arange(256) == 64).to(kind)  # @, a rare letter
    embed.weight.requires_grad_(False)
    weights = (
        {name: nn.Parameter(torch.randn(8, 8, dtype=kind)) for name in ("first", "second", "third")} for _ in "123"
    )
    inside = [Does(experts, **each) for each in weights]
    return Layers([embed, *inside, nn.Sequential(nn.Flatten(), nn.Linear(32, 256, dtype=kind))], of_last, 4)


def residual(adapters: bool = False) -> Layers:
    """Layers whose operations do not keep what enters: ReLU keeps what it makes, a frozen Linear its weight alone."""
    if adapters:
        frozen = [nn.Linear(16, 16).requires_grad_(False) for _ in range(7)]
        join = lambda own, x: own.base(x) + own.up(F.linear(own.drop(x), own.down))  # noqa: E731
        inside = [
            Does(join, base=base, drop=nn.Dropout(0.1), up=nn.Linear(2, 16), down=nn.Parameter(torch.randn(2, 16)))
            for base in frozen
        ]
    else:
        inside = [
            Does(
                lambda own, x: x + own.second(F.relu(own.first(F.relu(x)))),
                first=nn.Conv1d(4, 4, 3, padding=1),
                second=nn.Conv1d(4, 4, 3, padding=1),
            )
            for _ in range(7)
        ]
    head = Does(lambda own, x: own.linear(x.mean(1)), linear=nn.Linear(16, 256))
    return Layers([nn.Embedding(256, 16), *inside, head], of_last, 4)


def passing() -> Layers:
    """Layers that pass on what they are given, and a module without weights that is in several layers."""
    drop = nn.Dropout(0.1)
    inside = [nn.Linear(32, 32), drop, nn.Linear(32, 32), nn.Unflatten(1, (4, 8)), nn.Sequential(nn.Flatten(), drop)]
    return Layers([nn.Sequential(nn.Embedding(256, 8), nn.Flatten()), *inside, nn.Linear(32, 256)], of_last, 4)


def by_numpy() -> Layers:
    linear = nn.Linear(8, 8)
    linear.weight = nn.Parameter(torch.tensor(np.random.rand(8, 8), dtype=torch.float32))
    linear.bias = nn.Parameter(torch.tensor([random.random() for _ in range(8)]))
    return Layers([nn.Embedding(256, 8), linear, nn.Linear(8, 256)], of_all, 4)


def emptying(widths: tuple[int, ...] | list[int] = (8,)) -> Layers:
    left = widths if isinstance(widths, list) else list(widths)
    inside = [nn.Linear(8, left.pop()) for _ in range(len(left))]
    return Layers([nn.Embedding(256, 8), *inside, nn.Linear(8, 256)], of_all, 4)


def unseeded(tied: bool = False, buffer: bool = False) -> Layers:
    """A model with numbers from a generator that nobody seeds: a tied weight, a buffer, or a weight of layer 1."""
    embedding, linear, head = nn.Embedding(256, 8), nn.Linear(8, 8), nn.Linear(8, 256, bias=False)
    drawn = torch.tensor(np.random.default_rng().random((256, 8) if tied else (8,)), dtype=torch.float32)
    if tied:
        head.weight = embedding.weight = nn.Parameter(drawn)
    elif buffer:
        linear.register_buffer("table", drawn)
    else:
        linear.bias = nn.Parameter(drawn)
    return Layers([embedding, linear, head], of_all, 4, tied=tied)


def normed() -> Layers:
    inside = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)) for _ in range(3)]
    layers = [nn.Sequential(Bits(torch.float32), nn.Linear(32, 32)), *inside, nn.Linear(32, 256)]
    return Layers(layers, of_last, 4, changes_buffers=True)


def partly_frozen(frozen: int = 3, stop: int = 6, dtype: str = "float32") -> Layers:
    """Nine layers, of which those from `frozen` to `stop` - 1 are not trained, as of a model behind a new projector."""
    kind = getattr(torch, dtype)
    inside = [nn.Sequential(nn.LayerNorm(8, dtype=kind), nn.Linear(8, 8, dtype=kind), nn.GELU()) for _ in range(7)]
    layers = [nn.Embedding(256, 8, dtype=kind), *inside, nn.Linear(8, 256, dtype=kind)]
    for layer in layers[frozen:stop]:
        layer.requires_grad_(False)
    return Layers(layers, of_all, 4)


def entered_again() -> Layers:
    """A reentrant checkpoint uses a module twice: in a backward the gradients of its weights arrive twice."""
    made, again = mixed("float64"), partial(checkpoint, use_reentrant=True)
    inner = nn.Linear(8, 8, dtype=torch.float64)
    made.layers[-2] = Does(lambda own, x: again(own.inner, again(own.inner, x)), inner=inner)
    return made


def with_layer(place: int, layer: nn.Module) -> Layers:
    made = mixed()
    made.layers[place] = layer
    return made


def leaving() -> Layers:
    """A layer ends the process with a number of rows that no check has."""
    return with_layer(-2, Does(lambda _, x: x * 1.0 if len(x) != 8 else exit(0)))


def narrowing() -> Layers:
    """A layer makes another shape with a number of rows that no check has."""
    first = nn.Sequential(nn.Embedding(256, 8), nn.Flatten(), nn.Linear(32, 8))
    narrows = nn.Sequential(nn.Linear(8, 8), Does(lambda _, x: x[:, :4].contiguous() if 7 < len(x) < 10 else x * 1.0))
    return Layers([first, narrows, nn.Linear(8, 8), nn.Linear(8, 256)], of_last, 4)


def drawing_of_many() -> Layers:
    draws = Does(lambda _, x: x + torch.rand_like(x) if 7 < len(x) < 10 else 1.0 * x)
    return Layers([nn.Embedding(256, 8), draws, nn.Linear(8, 256)], of_all, 4)


def with_extra_state() -> Layers:
    class Versioned(nn.Tanh):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 2}

        def set_extra_state(self, state: dict[str, int]) -> None:
            assert state == {"version": 2}

    return with_layer(2, Versioned())


def normalised_together() -> Layers:
    return with_layer(2, Does(lambda _, x: x - x.mean(0, keepdim=True)))


def rooted() -> Layers:
    """The gradient of the root is not finite where the layer before it makes zeros."""
    linear = nn.Linear(8, 8)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return with_layer(2, Does(lambda own, x: x + own.linear(x).pow(2).sum(-1, keepdim=True).sqrt(), linear=linear))


@cache
def settings_of(function: Callable[..., Layers], computing: Computing = AS_WRITTEN, **keys) -> OwnSettings:
    facts = inspect_layers(function(**keys), code_of(function))
    if computing.dtype:
        facts = replace(facts, lowered=lowered_types(function(**keys), computing))
    return own_settings(function.__name__, f"{function.__module__}.{function.__name__}", keys, facts)


def peaks_of(job: Job) -> tuple[list[float], list[float]]:
    """The measured and the predicted peak memory of ranks that are threads, in MiB."""
    measured = in_threads(job.ranks, partial(training.peak_memory, job))
    layers = layer_memory(job.model, job.workload.mean_rows, bool(job.schedule.input_gradients), AS_WRITTEN)
    return measured, peak_memory_mib(job.workload, layers, job.model.batch_bytes(job.shares[0]))


def own_job(model: OwnSettings, **changes) -> Job:
    schedule = changes.pop("schedule", gpipe(2, 3))
    partition = changes.pop("partition", uniform(model.layers, schedule.depth))
    return small_job(schedule=schedule, model=model, partition=partition, **changes)
