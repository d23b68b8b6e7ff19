"""Models as people write them, each with what microp has to do with it.

::

    @shape(...)                       equal      trains as plain PyTorch does
    def fused_qkv() -> Layers         refused    before the first step, by these words
                                      either     one of the two; which one is not decided here

Of a command they are `builder: shapes.fused_qkv`; `build` makes them in either type of numbers.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from microp.commands.check_models import (
    CONTEXT,
    WIDTH,
    around,
    custom_function,
    dense,
    embedding,
    experts_by_index,
    fused_qkv,
    head,
    linear,
    low_rank_on_frozen,
    mean_error,
    passed_by_chance,
    weight_several_times,
)
from microp.model import Bits, Layers


class Shape(NamedTuple):
    """A model function and what is expected of it.

    Attributes:
        make: the function.
        expect: `equal`, `refused` or `either`.
        words: what a refusal says, among other words.
        reference: what it equals: `plain`, PyTorch with the whole batch at once; or `undivided`, microp on one rank
            with the same microbatches, for layers whose result depends on the microbatch (random numbers, statistics
            of the batch).
        bits: whether it equals the undivided run bit for bit; else to a tolerance, because torch computes it by another
            kernel where less is asked for: without a graph (LSTM, vmap), or without weights (RMSNorm).
        changes_buffers: whether a forward changes buffers, so that nothing can be recomputed, and replicas differ.
        is_slow: whether it takes long to run, so that it meets fewer schedules.
    """

    make: Callable[[], Layers]
    expect: str
    words: str
    reference: str
    bits: bool
    changes_buffers: bool
    is_slow: bool


SHAPES: dict[str, Shape] = {}


def shape(
    expect: str = "equal",
    words: str = "",
    reference: str = "plain",
    bits: bool = True,
    changes_buffers: bool = False,
    is_slow: bool = False,
) -> Callable[[Callable[[], Layers]], Callable[[], Layers]]:
    """Put a function among the `SHAPES`."""

    def add(make: Callable[[], Layers]) -> Callable[[], Layers]:
        SHAPES[make.__name__] = Shape(make, expect, words, reference, bits, changes_buffers, is_slow)
        return make

    return add


def build(shape: str, dtype: str = "float32") -> Layers:
    """Make a shape's layers with weights of a type, as a model function with keys."""
    made = SHAPES[shape].make()
    for layer in made.layers:
        layer.to(getattr(torch, dtype))
    return made


for checked in (fused_qkv, custom_function, weight_several_times, low_rank_on_frozen, experts_by_index):
    shape()(checked)
shape(reference="undivided")(passed_by_chance)


def with_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> Layers:
    return around(dense, loss)


class Does(nn.Module):
    """A layer with some children and a function of (its children, x) as its forward."""

    def __init__(self, forward: Callable[[Does, Tensor], Tensor], **children: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self._does = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x: Tensor) -> Tensor:
        return self._does(self, x)


def matrix(*sizes: int) -> nn.Parameter:
    sizes = sizes or (WIDTH, WIDTH)
    return nn.Parameter(torch.randn(sizes) / math.sqrt(WIDTH))


# --- weights that another module than their owner reads -------------------------------------------------------------


@shape()
def fused_qkv_first() -> Layers:
    """The reading layer is the very first one, which gets tokens, and the very last one."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.mix = embedding(), linear()

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(F.embedding(x, self.table.weight), self.mix.weight, self.mix.bias)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(WIDTH, 100), nn.Linear(WIDTH, 156)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, torch.cat([self.low.weight, self.high.weight]))

    return Layers([First(), dense(), dense(), dense(), Last()], mean_error, CONTEXT)


@shape()
def parameter_list() -> Layers:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([matrix() for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for weight in self.weights:
                x = torch.tanh(x @ weight)
            return x

    return around(Reads)


@shape()
def transposed_encoder() -> Layers:
    """An autoencoder whose decoder is the transposed encoder."""
    return around(
        lambda: Does(
            lambda own, x: x + F.linear(torch.tanh(own.encode(x)), own.encode.weight.t(), own.shift),
            encode=nn.Linear(WIDTH, 8),
            shift=nn.Parameter(torch.zeros(WIDTH)),
        )
    )


@shape()
def quantised_weight() -> Layers:
    """A straight-through estimator on a child's weight."""

    def quantised(own: Does, x: Tensor) -> Tensor:
        weight = own.fc.weight
        rounded = weight + ((weight * 8).round() / 8 - weight).detach()
        return torch.tanh(F.linear(x, rounded, own.fc.bias))

    return around(lambda: Does(quantised, fc=linear()))


@shape()
def functional_call() -> Layers:
    """A child is called with other weights than its own."""

    def scaled(own: Does, x: Tensor) -> Tensor:
        weights = {"weight": own.fc.weight * own.scale.exp(), "bias": own.fc.bias * 2}
        return torch.tanh(torch.func.functional_call(own.fc, weights, (x,)))

    return around(lambda: Does(scaled, fc=linear(), scale=nn.Parameter(torch.zeros(()))))


@shape()
def forward_of_the_class() -> Layers:
    return around(lambda: Does(lambda own, x: torch.tanh(nn.Linear.forward(own.fc, x)), fc=linear()))


@shape()
def one_child_called_and_one_read() -> Layers:
    return around(
        lambda: Does(lambda own, x: torch.tanh(F.linear(own.one(x), own.other.weight)), one=linear(), other=linear())
    )


@shape()
def layers_that_look_alike() -> Layers:
    """Two layers of equal modules and sizes, of which the second one reads its child's weight."""
    calls = Does(lambda own, x: torch.tanh(own.fc(x)), fc=linear())
    reads = Does(lambda own, x: torch.tanh(F.linear(x, own.fc.weight, own.fc.bias)), fc=linear())
    return Layers([embedding(), calls, reads, dense(), dense(), head()], mean_error, CONTEXT)


@shape()
def reads_in_every_other_microbatch() -> Layers:
    """Whether the parent reads the weight or calls the child depends on the numbers that come in."""

    def either(own: Does, x: Tensor) -> Tensor:
        return torch.tanh(own.fc(x) if x.sum() > 0 else F.linear(x, own.fc.weight, own.fc.bias))

    return around(lambda: Does(either, fc=linear()))


@shape()
def weights_made_by_a_child() -> Layers:
    """A hypernetwork: a child makes another's weights."""

    def made(own: Does, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, own.maker(own.codes.weight).view(WIDTH, WIDTH)))

    return around(lambda: Does(made, maker=nn.Linear(4, WIDTH), codes=nn.Embedding(WIDTH, 4)))


@shape(bits=False)
def ensemble_by_vmap() -> Layers:
    """The weights of three children are stacked, and all are called at once."""

    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList([linear() for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.stack([member.weight for member in self.members])
            biases = torch.stack([member.bias for member in self.members])
            return torch.tanh(torch.vmap(F.linear, in_dims=(None, 0, 0))(x, weights, biases).mean(0))

    return around(Ensemble)


# --- one weight several times ---------------------------------------------------------------------------------------


@shape()
def module_twice() -> Layers:
    return around(lambda: Does(lambda own, x: own.fc(torch.tanh(own.fc(x))), fc=linear()))


@shape()
def two_modules_with_one_weight() -> Layers:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = linear(), linear()
            self.other.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.other(torch.tanh(self.one(x)))

    return around(Shared)


@shape()
def tied_between_layers() -> Layers:
    """Two layers of one stage or of two share a Linear inside a nested Sequential, and one reads it as a matrix."""
    shared = linear()
    one = nn.Sequential(nn.Sequential(shared, nn.Tanh()), nn.LayerNorm(WIDTH))
    other = nn.Sequential(nn.LayerNorm(WIDTH), nn.Sequential(nn.Sequential(shared), nn.Tanh()))
    third = Does(lambda own, x: torch.tanh(F.linear(x, own.fc.weight)), fc=shared)
    return Layers([embedding(), one, other, third, dense(), head()], mean_error, CONTEXT, tied=True)


# --- parametrizations -----------------------------------------------------------------------------------------------


def tanh_of(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, nn.Tanh())


@shape()
def old_weight_norm() -> Layers:
    """The one by a hook before the forward."""
    return around(lambda: tanh_of(torch.nn.utils.weight_norm(linear())))


@shape(reference="undivided", changes_buffers=True)
def spectral_norm() -> Layers:
    return around(lambda: tanh_of(parametrizations.spectral_norm(linear())), changes_buffers=True)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).t()


class Scaled(nn.Module):
    """A parametrization with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH, 1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


def parametrized(*parts: nn.Module) -> nn.Module:
    made = linear()
    for part in parts:
        parametrize.register_parametrization(made, "weight", part)
    return made


@shape()
def own_parametrization() -> Layers:
    return around(lambda: tanh_of(parametrized(Symmetric(), Scaled())))


@shape()
def parametrization_read_by_its_parent() -> Layers:
    return around(
        lambda: Does(lambda own, x: torch.tanh(own.fc(x) + F.linear(x, own.fc.weight)), fc=parametrized(Scaled()))
    )


@shape()
def pruned() -> Layers:
    return around(lambda: tanh_of(prune.l1_unstructured(linear(), "weight", amount=0.5)))


# --- kinds of layers ------------------------------------------------------------------------------------------------


@shape(bits=False)
def lstm() -> Layers:
    return around(lambda: Does(lambda own, x: own.rnn(x)[0].contiguous(), rnn=nn.LSTM(WIDTH, WIDTH, batch_first=True)))


@shape("either", words="contiguous", bits=False)
def lstm_that_is_not_contiguous() -> Layers:
    return around(lambda: Does(lambda own, x: own.rnn(x)[0], rnn=nn.LSTM(WIDTH, WIDTH, batch_first=True)))


@shape(reference="undivided", changes_buffers=True)
def batch_norm() -> Layers:
    return around(lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT), nn.Tanh()), changes_buffers=True)


@shape("refused", words="changes_buffers=True")
def undeclared_batch_norm() -> Layers:
    return around(lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT)))


@shape()
def batch_norm_in_eval() -> Layers:
    return around(lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT).eval(), nn.Tanh()))


@shape()
def in_place_on_a_part() -> Layers:
    def halved(own: Does, x: Tensor) -> Tensor:
        y = own.fc(x)
        y[..., :4] *= 0.5
        y += 1
        return torch.tanh(y)

    return around(lambda: Does(halved, fc=linear()))


@shape()
def encoder_layer_norm_first() -> Layers:
    return around(
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True, norm_first=True, bias=False)
    )


@shape()
def einsum_of_a_parameter() -> Layers:
    return around(
        lambda: Does(lambda own, x: torch.tanh(torch.einsum("btd,hde->bte", x, own.w)), w=matrix(2, WIDTH, WIDTH))
    )


@shape()
def scalar_gate_of_zero() -> Layers:
    return around(
        lambda: Does(
            lambda own, x: x + own.alpha * torch.tanh(own.fc(x)), alpha=nn.Parameter(torch.zeros(())), fc=linear()
        )
    )


@shape()
def views() -> Layers:
    """Layers that return views of what they are given, and of their products."""
    inside = [
        nn.Flatten(),
        nn.Linear(CONTEXT * WIDTH, CONTEXT * WIDTH),
        nn.Unflatten(1, (CONTEXT, WIDTH)),
        Does(lambda own, x: own.fc(x)[..., :WIDTH].contiguous(), fc=nn.Linear(WIDTH, 2 * WIDTH)),
    ]
    return Layers([embedding(), *inside, head()], mean_error, CONTEXT)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


@shape()
def frozen_first_layers() -> Layers:
    return Layers(
        [frozen(embedding()), frozen(dense()), frozen(dense()), dense(), dense(), head()], mean_error, CONTEXT
    )


@shape()
def frozen_embedding_with_positions() -> Layers:
    """In one layer a frozen table and a trained one."""
    first = Does(lambda own, x: own.words(x) + own.places, words=frozen(embedding()), places=matrix(CONTEXT, WIDTH))
    return Layers([first, dense(), dense(), dense(), head()], mean_error, CONTEXT)


@shape()
def frozen_middle() -> Layers:
    norm = nn.Sequential(nn.LayerNorm(WIDTH), linear(), nn.Tanh())
    return Layers(
        [embedding(), dense(), frozen(norm), frozen(dense()), frozen(dense()), dense(), head()], mean_error, CONTEXT
    )


@shape()
def frozen_head() -> Layers:
    return Layers([embedding(), dense(), dense(), dense(), frozen(head())], mean_error, CONTEXT)


@shape()
def frozen_bias() -> Layers:
    def layer() -> nn.Module:
        made = dense()
        made[0].bias.requires_grad_(False)
        return made

    return around(layer)


@shape()
def frozen_weight_trained_bias() -> Layers:
    def layer() -> nn.Module:
        made = dense()
        made[0].weight.requires_grad_(False)
        return made

    return around(layer)


@shape()
def unused_child() -> Layers:
    return around(
        lambda: Does(lambda own, x: torch.tanh(own.fc(x)), fc=linear(), unused=linear(), norm=nn.LayerNorm(3))
    )


@shape()
def used_without_gradient() -> Layers:
    """A child whose result is detached is not trained."""

    def target(own: Does, x: Tensor) -> Tensor:
        with torch.no_grad():
            other = own.teacher(x)
        return torch.tanh(own.fc(x)) + own.norm(other).detach()

    return around(lambda: Does(target, fc=linear(), teacher=linear(), norm=nn.LayerNorm(WIDTH)))


class Experts(nn.Module):
    """Each token goes to one of three experts."""

    def __init__(self, route: Callable[[Experts, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.route = route
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList([dense() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        return x + self.route(self, tokens, self.gate(tokens).softmax(-1)).view_as(x)


def by_mask(own: Experts, tokens: Tensor, shares: Tensor) -> Tensor:
    chosen = shares.argmax(-1)
    total = torch.zeros_like(tokens)
    for number, expert in enumerate(own.experts):
        mask = chosen == number
        total[mask] = expert(tokens[mask]) * shares[mask][:, number, None]
    return total


@shape()
def experts_by_mask() -> Layers:
    return around(lambda: Experts(by_mask))


TABLE = torch.linspace(-1, 1, CONTEXT * WIDTH).view(CONTEXT, WIDTH)


@shape()
def table_of_the_file() -> Layers:
    """A table that is a constant of the module."""
    return around(lambda: Does(lambda own, x: torch.tanh(own.fc(x * TABLE.to(x.dtype))), fc=linear()))


@shape()
def table_as_an_attribute() -> Layers:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = torch.sin(torch.arange(CONTEXT * WIDTH)).view(CONTEXT, WIDTH), linear()

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.fc(x + self.table.to(x.dtype)))

    return around(Positions)


@shape("refused")
def running_mean_as_an_attribute() -> Layers:
    """What a forward changes is a plain attribute."""

    def follow(own: Does, x: Tensor) -> Tensor:
        own.mean = 0.5 * own.mean + 0.5 * x.detach().mean((0, 1))
        return torch.tanh(own.fc(x - own.mean))

    def layer() -> nn.Module:
        made = Does(follow, fc=linear())
        made.mean = torch.zeros(())
        return made

    return around(layer)


@shape()
def cache_that_is_made_in_the_first_forward() -> Layers:
    """Positions that are kept for the next forward."""

    def rotate(own: Does, x: Tensor) -> Tensor:
        if own.kept is None:
            own.kept = torch.sin(torch.arange(CONTEXT * WIDTH, dtype=x.dtype, device=x.device)).view(CONTEXT, WIDTH)
        return torch.tanh(own.fc(x * own.kept))

    def layer() -> nn.Module:
        made = Does(rotate, fc=linear())
        made.kept = None
        return made

    return around(layer)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return -gradient


@shape()
def gradient_reversal() -> Layers:
    return around(lambda: Does(lambda own, x: torch.tanh(own.fc(Reversed.apply(x))), fc=linear()))


@shape("refused", words="weight")
def embedding_of_bounded_norm() -> Layers:
    """A forward writes into the weight: the vectors of its own tokens, so that replicas would differ."""
    return Layers([nn.Embedding(256, WIDTH, max_norm=1.0), dense(), dense(), dense(), head()], mean_error, CONTEXT)


@shape(reference="undivided")
def gradients_by_frequency() -> Layers:
    """The gradient depends on how often a token is in the microbatch."""
    first = nn.Embedding(256, WIDTH, scale_grad_by_freq=True)
    return Layers([first, dense(), dense(), dense(), head()], mean_error, CONTEXT)


@shape()
def bits_and_linear() -> Layers:
    """Layers of two sizes only, (rows, numbers)."""
    inside = [nn.Sequential(nn.Linear(8 * CONTEXT, 8 * CONTEXT), nn.ReLU(inplace=True)) for _ in range(3)]
    first = nn.Sequential(
        Bits(torch.float32), Does(lambda own, x: own.fc(x.to(own.fc.weight.dtype)), fc=nn.Linear(32, 32))
    )
    return Layers(
        [first, *inside, nn.Linear(32, 256)], lambda logits, targets: F.cross_entropy(logits, targets[:, -1]), CONTEXT
    )


class Cubed(nn.Linear):
    """A derived Linear."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 3


@shape()
def derived_linear() -> Layers:
    return around(lambda: Cubed(WIDTH, WIDTH))


@shape()
def linear_with_another_forward() -> Layers:
    """Its forward was replaced, as tools for quantisation do."""

    def layer() -> nn.Module:
        made = linear()
        made.forward = lambda x, own=made: torch.tanh(F.linear(x, own.weight * 2, own.bias))
        return made

    return around(layer)


# --- checkpoints and compiled code inside a layer ---------------------------------------------------------------------


@shape("either")
def reentrant_checkpoint_inside() -> Layers:
    inner = lambda: nn.Sequential(linear(), nn.Tanh(), linear())  # noqa: E731
    return around(lambda: Does(lambda own, x: x + checkpoint(own.inner, x, use_reentrant=True), inner=inner()))


@shape(reference="undivided")
def checkpoint_that_draws() -> Layers:
    """A recomputation inside a layer draws what its forward drew, while other ranks of this process draw, too."""

    def layer(own: Does, x: Tensor) -> Tensor:
        return x + checkpoint(lambda y: F.dropout(torch.tanh(own.fc(y)), 0.3), x, use_reentrant=False)

    return around(lambda: Does(layer, fc=linear()))


@shape()
def checkpoint_of_a_function() -> Layers:
    """What is recomputed reads the weights of children."""

    def layer(own: Does, x: Tensor) -> Tensor:
        return x + checkpoint(lambda y: torch.tanh(own.fc(y)) @ own.fc.weight, x, use_reentrant=False)

    return around(lambda: Does(layer, fc=linear()))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="aot_eager", dynamic=False)


@shape(is_slow=True)
def compiled_inside() -> Layers:
    """A child is compiled, the layer is not."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fc = compiled(nn.Sequential(linear(), nn.Tanh())), linear()

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.inner(x))

    return Layers([embedding(), dense(), Block(), dense(), head()], mean_error, CONTEXT)


# --- hooks ----------------------------------------------------------------------------------------------------------


def hooked(add: Callable[[nn.Linear], object]) -> Layers:
    def layer() -> nn.Module:
        made = dense()
        add(made[0])
        return made

    return around(layer)


@shape()
def forward_hooks() -> Layers:
    def add(fc: nn.Linear) -> None:
        fc.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
        fc.register_forward_hook(lambda _, given, y: y * 0.5 + given[0])

    return hooked(add)


@shape()
def backward_hook() -> Layers:
    """The gradient of a child's input is scaled."""
    return hooked(lambda fc: fc.register_full_backward_hook(lambda _, of_x, of_y: tuple(g * 0.5 for g in of_x)))


@shape()
def backward_pre_hook() -> Layers:
    """The gradient of a child's output is scaled, and so that of its weights."""
    return hooked(lambda fc: fc.register_full_backward_pre_hook(lambda _, of_y: tuple(g * 0.5 for g in of_y)))


@shape()
def backward_hook_of_a_layer() -> Layers:
    def layer() -> nn.Module:
        made = Does(lambda own, x: torch.tanh(F.linear(x, own.fc.weight, own.fc.bias)), fc=linear())
        made.register_full_backward_hook(lambda _, of_x, of_y: tuple(g * 0.5 for g in of_x))
        made.register_full_backward_pre_hook(lambda _, of_y: tuple(g * 2 for g in of_y))
        return made

    return around(layer)


def scaled_gradient(y: Tensor, factor: float) -> Tensor:
    if y.requires_grad:
        y.register_hook(lambda g: g * factor)
    return y


@shape()
def hook_on_an_output() -> Layers:
    """A tensor hook on what a child has made."""
    return around(lambda: Does(lambda own, x: torch.tanh(scaled_gradient(own.fc(x), 0.5)), fc=linear()))


@shape()
def hook_on_a_weight() -> Layers:
    """A sparse weight: its gradient is masked."""

    def add(fc: nn.Linear) -> None:
        fc.weight.register_hook(lambda g: g * torch.ones_like(g).tril())

    return hooked(add)


@shape()
def hook_on_a_weight_read_by_its_parent() -> Layers:
    def layer() -> nn.Module:
        made = Does(lambda own, x: torch.tanh(F.linear(x, own.fc.weight)), fc=linear())
        made.fc.weight.register_hook(lambda g: g * torch.ones_like(g).tril())
        return made

    return around(layer)


@shape()
def hook_after_a_gradient() -> Layers:
    """The accumulated gradient is masked."""

    def mask(weight: Tensor) -> None:
        weight.grad = weight.grad.tril()

    return hooked(lambda fc: fc.weight.register_post_accumulate_grad_hook(mask))


# --- random numbers -------------------------------------------------------------------------------------------------


def drawing(draw: Callable[[Tensor], Tensor | float]) -> Layers:
    """A layer that multiplies by what it draws."""
    return around(lambda: Does(lambda own, x: torch.tanh(own.fc(x)) * draw(x), fc=linear()))


@shape(reference="undivided")
def dropout() -> Layers:
    return around(lambda: nn.Sequential(linear(), nn.Dropout(0.3), nn.Tanh()))


@shape(reference="undivided")
def dropout_of_a_read_weight() -> Layers:
    """Dropout on the weights themselves."""
    return around(
        lambda: Does(lambda own, x: torch.tanh(F.linear(x, F.dropout(own.fc.weight, 0.3, own.training))), fc=linear())
    )


@shape(reference="undivided")
def python_random_number() -> Layers:
    return drawing(lambda x: 1 + random.random())


@shape(reference="undivided")
def numpy_random() -> Layers:
    return drawing(lambda x: torch.from_numpy(np.random.rand(*x.shape)).to(x.dtype))


@shape(reference="undivided")
def torch_random_number() -> Layers:
    """It is read as a number of Python."""
    return drawing(lambda x: 1 + torch.rand(()).item())


GENERATOR = torch.Generator().manual_seed(0)


@shape("refused", words="random")
def own_generator() -> Layers:
    return drawing(lambda x: torch.rand(x.shape, generator=GENERATOR).to(x.dtype))


@shape("refused", words="random")
def own_python_generator() -> Layers:
    own = random.Random(0)
    return drawing(lambda x: 1 + own.random())


@shape("refused", words="random")
def system_random() -> Layers:
    return drawing(lambda x: 1 + os.urandom(1)[0] / 256)


@shape()
def own_generator_that_begins_anew() -> Layers:
    """A generator that is seeded in each forward draws the same numbers each time."""

    def noise(x: Tensor) -> Tensor:
        drawn = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(3))
        return drawn.to(x.dtype)

    return drawing(noise)


# --- layers that read what is not their own ---------------------------------------------------------------------------


@shape("refused", words="layer 0")
def reads_another_layer_in_a_list() -> Layers:
    """A head that holds the embedding in a list, so that it owns nothing of it."""
    first = embedding()
    others = [first]
    last = Does(lambda own, x: own.fc(F.linear(x, others[0].weight)), fc=nn.Linear(256, 256))
    last.others = others
    return Layers([first, dense(), dense(), dense(), last], mean_error, CONTEXT)


@shape("refused", words="layer 1")
def reads_what_another_layer_kept() -> Layers:
    """A connection over layers by an attribute, as in a U-Net."""

    def keep(own: Does, x: Tensor) -> Tensor:
        own.kept = torch.tanh(own.fc(x))
        return own.kept * 1

    keeper = Does(keep, fc=linear())
    reader = Does(lambda own, x: torch.tanh(own.fc(x)) + keeper.kept, fc=linear())
    return Layers([embedding(), keeper, dense(), dense(), reader, head()], mean_error, CONTEXT)


@shape("either")
def reads_a_frozen_layer() -> Layers:
    """What nobody trains may be read from anywhere."""
    first = frozen(embedding())
    others = [first]
    mixed = Does(lambda own, x: own.fc(x), fc=linear())
    last = Does(lambda own, x: F.linear(own.fc(x), others[0].weight), fc=linear())
    return Layers([nn.Sequential(first, linear()), mixed, dense(), dense(), last], mean_error, CONTEXT)


# --- losses -----------------------------------------------------------------------------------------------------------


@shape()
def loss_of_the_last_token() -> Layers:
    return with_loss(lambda logits, targets: F.cross_entropy(logits[:, -1], targets[:, -1]))


@shape()
def label_smoothing() -> Layers:
    return with_loss(lambda logits, targets: F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.1))


@shape()
def masked_mean_of_each_row() -> Layers:
    """Padding counts nothing, and every row counts the same."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        mask = targets != 0
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return ((each * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()

    return with_loss(loss)


NOT_ROWS = "mean over the rows"


@shape("refused", words=NOT_ROWS)
def exponential_of_the_mean() -> Layers:
    return with_loss(lambda logits, targets: (mean_error(logits, targets) / 4).exp())


@shape("refused", words=NOT_ROWS)
def a_small_part_that_is_no_mean() -> Layers:
    return with_loss(lambda logits, targets: mean_error(logits, targets) + 1e-2 * logits.std(correction=0))


@shape("refused", words=NOT_ROWS)
def ignore_index_of_another_token() -> Layers:
    return with_loss(lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=32))


@shape("refused", words=NOT_ROWS)
def class_weight_of_one_token() -> Layers:
    """Its mean is one over the weights of the tokens."""
    weights = torch.ones(256)
    weights[0] = 0.1

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight=weights.to(logits))

    return with_loss(loss)


@shape("refused", words=NOT_ROWS)
def sum_over_a_batch_of_known_size() -> Layers:
    return with_loss(lambda logits, targets: mean_error(logits, targets) * len(targets) / 9)


@shape("refused", words=NOT_ROWS)
def rows_against_each_other() -> Layers:
    """The rows of a microbatch are each other's wrong answers, as in CLIP."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        one, other = logits[:, 0], logits[:, -1]
        return F.cross_entropy(one @ other.t(), torch.arange(len(one), device=one.device))

    return with_loss(loss)


@shape("refused", words="layer 0")
def penalty_on_the_embedding() -> Layers:
    first = embedding()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return mean_error(logits, targets) + 0.1 * first.weight.pow(2).mean()

    return Layers([first, dense(), dense(), dense(), head()], loss, CONTEXT)


@shape("either", words="layer 4")
def penalty_on_the_head() -> Layers:
    last = head()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return mean_error(logits, targets) + 0.1 * last.weight.pow(2).mean()

    return Layers([embedding(), dense(), dense(), dense(), last], loss, CONTEXT)


@shape("refused", words="weight")
def head_of_the_loss_s_object() -> Layers:
    """The loss is a method of an object that has weights."""

    class Adaptive:
        def __init__(self) -> None:
            self.last = head()

        def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
            return mean_error(self.last(hidden), targets)

    return Layers([embedding(), dense(), dense(), dense(), linear()], Adaptive().loss, CONTEXT)


@shape("refused", words="weight")
def temperature_in_the_loss() -> Layers:
    """One number that is learnt."""
    scale = nn.Parameter(torch.ones(()))
    return with_loss(lambda logits, targets: mean_error(logits * scale, targets) + 0.1 * scale.square())


@shape("refused", words="layer")
def loss_of_what_a_layer_kept() -> Layers:
    """The balance of a mixture of experts, kept by a layer and added by the loss."""

    def keep(own: Does, x: Tensor) -> Tensor:
        shares = own.gate(x).softmax(-1)
        own.balance = shares.mean((0, 1)).square().sum()
        return torch.tanh(own.fc(x)) * shares[..., :1]

    keeper = Does(keep, gate=nn.Linear(WIDTH, 3), fc=linear())
    return Layers(
        [embedding(), keeper, dense(), dense(), head()],
        lambda logits, targets: mean_error(logits, targets) + 0.1 * keeper.balance,
        CONTEXT,
    )


@shape("either", words="random", reference="undivided")
def loss_that_draws() -> Layers:
    return with_loss(lambda logits, targets: mean_error(F.dropout(logits, 0.2), targets))


# --- what passes by the tensor between the layers ---------------------------------------------------------------------


def beside(first: Callable[[Tensor, Tensor], dict], last: Callable[[dict, Tensor], Tensor]) -> Layers:
    """The embedding keeps something of its tokens in a dictionary, and a later layer uses it."""
    kept: dict[str, Tensor] = {}

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = embedding()

        def forward(self, x: Tensor) -> Tensor:
            y = self.table(x)
            kept.update(first(x, y))
            return y

    later = Does(lambda layer, x: last(kept, torch.tanh(layer.fc(x))), fc=linear())
    return Layers([First(), dense(), dense(), later, head()], mean_error, CONTEXT)


@shape("refused", words="what another layer keeps")
def mask_in_a_context() -> Layers:
    return beside(lambda x, _: {"mask": x == 32}, lambda kept, y: y.masked_fill(kept["mask"][..., None], 0.0))


@shape("refused", words="reads the memory of")
def tied_by_their_data() -> Layers:
    layers = [embedding(), dense(), dense(), dense(), nn.Linear(WIDTH, 256, bias=False)]
    layers[-1].weight.data = layers[0].weight.data
    return Layers(layers, mean_error, CONTEXT)


@shape("refused", words="reads the memory of")
def buffer_of_another_weight() -> Layers:
    table = embedding()
    last = Does(lambda layer, x: layer.fc(x) + F.linear(x, layer.table), fc=head())
    last.register_buffer("table", table.weight.data)
    return Layers([table, dense(), dense(), dense(), last], mean_error, CONTEXT)


# --- hooks, modes, writes and backwards of their own ------------------------------------------------------------------


def hooked_whole(add: Callable[[nn.Sequential], object]) -> Layers:
    def make() -> nn.Sequential:
        layer = dense()
        add(layer)
        return layer

    return around(make)


@shape()
def backward_pre_hook_of_a_sequential() -> Layers:
    return hooked_whole(
        lambda layer: layer.register_full_backward_pre_hook(lambda _, given: tuple(0.1 * g for g in given))
    )


@shape(reference="undivided")
def noise_in_a_pre_hook() -> Layers:
    return hooked_whole(lambda layer: layer.register_forward_pre_hook(lambda _, given: (F.dropout(given[0], 0.3),)))


@shape("refused", words="without a graph")
def asks_for_the_gradient_mode() -> Layers:
    return around(lambda: Does(lambda layer, x: layer.fc(x) * (1.1 if torch.is_grad_enabled() else 1.0), fc=linear()))


@shape("refused", words="writes into its weight")
def momentum_encoder() -> Layers:
    def forward(layer: Does, x: Tensor) -> Tensor:
        with torch.no_grad():
            layer.key.weight.data = 0.9 * layer.key.weight.data + 0.1 * layer.query.weight.data
        return torch.tanh(layer.query(x)) + layer.key(x).detach()

    return around(lambda: Does(forward, query=linear(), key=linear().requires_grad_(False)))


class Clip(torch.autograd.Function):
    """A gradient of a fixed length."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 0.1 * gradient / (gradient.norm() + 1e-9)


@shape("refused", words="not linear")
def clipped_by_a_function() -> Layers:
    return around(lambda: Does(lambda layer, x: Clip.apply(torch.tanh(layer.fc(x))), fc=linear()))


@shape("refused", words="not linear")
def clipped_by_a_hook() -> Layers:
    return hooked_whole(lambda layer: layer[0].weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3)))


@shape(reference="undivided", bits=False)
def statistics_of_the_microbatch_alone() -> Layers:
    return around(lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT, track_running_stats=False), nn.Tanh()))


# --- losses that write, and whose gradient is no mean -----------------------------------------------------------------


@shape("refused", words="writes into its targets")
def loss_that_writes_into_its_targets() -> Layers:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        targets[targets == 32] = 95
        return mean_error(logits, targets)

    return with_loss(loss)


@shape()
def loss_that_writes_into_its_logits() -> Layers:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        logits /= 0.7
        return mean_error(logits, targets)

    return with_loss(loss)


@shape("refused", words=NOT_ROWS)
def loss_over_its_own_value() -> Layers:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        error = mean_error(logits, targets)
        return error / error.detach()

    return with_loss(loss)


@shape("refused", words=NOT_ROWS)
def easy_tokens_left_out() -> Layers:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        errors = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        chosen = (-errors).exp().detach() < 0.4
        return (errors * chosen).sum() / chosen.sum().clamp(min=1)

    return with_loss(loss)


@shape("refused", words=NOT_ROWS)
def hardest_tokens_of_many() -> Layers:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        errors = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").flatten()
        return errors.topk(min(len(errors), max(32, len(errors) // 4))).values.mean()

    return with_loss(loss)


@shape("refused", words="the first input decides")
def shifted_by_the_first_input() -> Layers:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = linear()
            self.mean: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            if self.mean is None:
                self.mean = y.detach().mean((0, 1))
            return torch.tanh(y - self.mean)

    return around(Shifted)
