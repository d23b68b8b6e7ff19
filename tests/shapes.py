"""Models as people write them, each with what microp has to do with it.

::

    @shape                 the function returns all layers and the loss
    @layer(fc=linear)      it is the forward of a layer with such a child; a model has two such layers
    @loss                  it is the loss of a model of dense layers
    twice("dropout", ...)  of one line: what makes a layer

                           equal      trains as plain PyTorch does; or, with UNDIVIDED, as microp on one rank
                           refused    before the first step, by these words
                           either     refused by schedules that divide, equal with the others

Of a command they are `builder: shapes.fused_qkv`; `build` makes them in either type of numbers.
"""

import math
import os
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakTensorKeyDictionary

from microp.model import Bits, Layers

WIDTH, CONTEXT = 16, 4


def mean_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def around(
    make: Callable[[], nn.Module], loss: Callable[[Tensor, Tensor], Tensor] = mean_error, changes_buffers: bool = False
) -> Layers:
    """Return a model with two such layers, which take and give (rows, CONTEXT, WIDTH)."""
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


class Shape(NamedTuple):
    """A model function and what is expected of it.

    A layer whose result depends on the microbatch (random numbers, statistics of the batch) equals `undivided`: microp
    on one rank with the same microbatches; others equal `plain`, PyTorch with the whole batch at once. Without `bits`
    the undivided run is equalled to a tolerance, because torch computes it by another kernel where less is asked for:
    without a graph (LSTM, vmap), or without weights (RMSNorm).
    """

    make: Callable[[], Layers]
    expect: str = "equal"  # or `refused` or `either`
    words: str = ""  # what a refusal says, among other words
    reference: str = "plain"
    bits: bool = True
    changes_buffers: bool = False  # in a forward, so that nothing can be recomputed, and replicas differ


SHAPES: dict[str, Shape] = {}
UNDIVIDED, NOT_BITS = {"reference": "undivided"}, {"bits": False}
CHANGES_BUFFERS = {"reference": "undivided", "changes_buffers": True}


def refused(words: str) -> dict[str, Any]:
    return {"expect": "refused", "words": words}


def build(shape: str, dtype: str = "float32") -> Layers:
    made = SHAPES[shape].make()
    for layer in made.layers:
        layer.to(getattr(torch, dtype))
    return made


def shape(make: Callable[[], Layers] | None = None, **expected: Any) -> Any:
    if make is None:
        return lambda function: shape(function, **expected)
    SHAPES[make.__name__] = Shape(make, **expected)
    return make


def refuse(words: str) -> Any:
    return shape(**refused(words))


def twice(name: str, make: Callable[[], nn.Module], **expected: Any) -> None:
    buffers = expected.get("changes_buffers", False)
    SHAPES[name] = Shape(lambda: around(make, changes_buffers=buffers), **expected)


def layer(expected: dict[str, Any] | None = None, **children: Callable[[], Any]) -> Callable[[Callable], Callable]:
    def add(forward: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        twice(forward.__name__, does(forward, **children), **expected or {})
        return forward

    return add


def loss(expected: dict[str, Any] | None = None) -> Callable[[Callable], Callable]:
    def add(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        SHAPES[function.__name__] = Shape(lambda: around(dense, function), **expected or {})
        return function

    return add


def stack(*layers: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] = mean_error, tied: bool = False) -> Layers:
    return Layers(list(layers), loss, CONTEXT, tied=tied)


class Does(nn.Module):
    """A layer with some children, weights or other attributes, and a function of (itself, x) as its forward."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **children: Any) -> None:
        super().__init__()
        self._does = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x: Tensor) -> Tensor:
        return self._does(self, x)


def does(forward: Callable[[Any, Tensor], Tensor], **children: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: Does(forward, **{name: make() for name, make in children.items()})


def changed(make: Callable[[], nn.Module], change: Callable[[Any], object]) -> Callable[[], nn.Module]:
    """Return what makes a layer and then changes it."""

    def make_changed() -> nn.Module:
        made = make()
        change(made)
        return made

    return make_changed


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def tanh_of(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, nn.Tanh())


def matrix(*sizes: int) -> nn.Parameter:
    sizes = sizes or (WIDTH, WIDTH)
    return nn.Parameter(torch.randn(sizes) / math.sqrt(WIDTH))


def zero() -> nn.Parameter:
    return nn.Parameter(torch.zeros(()))


def three(make: Callable[[], nn.Module]) -> Callable[[], nn.ModuleList]:
    return lambda: nn.ModuleList(make() for _ in range(3))


@layer(**dict.fromkeys("qkv", lambda: linear(bias=False)))
def fused_qkv(own, x):
    """Attention that reads the weights of its parts itself, for one product in place of three."""
    q, k, v = F.linear(x, torch.cat([own.q.weight, own.k.weight, own.v.weight])).chunk(3, -1)
    return x + F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Product(torch.autograd.Function):
    """x Wᵀ + b; computes only the gradients that are asked for."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        of_weight = rows.t() @ x.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


@layer(inside=linear)
def custom_function(own, x):
    return torch.tanh(Product.apply(x, own.inside.weight, own.inside.bias))


@layer(inside=linear)
def weight_several_times(own, x):
    """One weight four times on one path: by its part twice, read twice, once of these transposed."""
    x = torch.tanh(F.linear(torch.tanh(own.inside(x)), own.inside.weight))
    return torch.tanh(own.inside(x) + x @ own.inside.weight)


@layer(
    norm=lambda: frozen(nn.LayerNorm(WIDTH)),
    base=lambda: frozen(linear()),
    down=lambda: nn.Linear(WIDTH, 2, bias=False),
    up=lambda: nn.Linear(2, WIDTH, bias=False),
)
def low_rank_on_frozen(own, x):
    """LoRA: the Linear and the norm are frozen, two thin matrices are trained."""
    x = own.norm(x)
    return torch.tanh(own.base(x) + own.up(own.down(x)))


@layer(gate=lambda: nn.Linear(WIDTH, 3), experts=three(dense))
def experts_by_index(own, x):
    """A mixture of experts: the sizes inside depend on the numbers, and an expert may get no token."""
    tokens = x.flatten(0, 1)
    best, chosen = own.gate(tokens).softmax(-1).max(-1)
    total = torch.zeros_like(tokens)
    for number, expert in enumerate(own.experts):
        places = (chosen == number).nonzero().squeeze(-1)
        if len(places):
            part = expert(tokens.index_select(0, places)) * best.index_select(0, places).unsqueeze(-1)
            total = total.index_add(0, places, part)
    return x + total.view_as(x)


either_weight = does(lambda own, x: torch.tanh(x @ (own.w if x.sum() > 0 else own.v)), w=matrix, v=matrix)
twice("block_that_runs_twice", does(lambda own, x: own.block(own.block(x)), block=either_weight), **UNDIVIDED)


@layer(UNDIVIDED, inside=linear, shift=lambda: nn.Parameter(torch.zeros(WIDTH)))
def passed_by_chance(own, x):
    return torch.tanh(own.inside(x) if random.random() < 0.5 else x + own.shift)


# --- weights that another module than their owner reads -------------------------------------------------------------
@shape
def fused_qkv_first() -> Layers:
    first = Does(
        lambda own, x: F.linear(F.embedding(x, own.table.weight), own.mix.weight, own.mix.bias),
        table=embedding(),
        mix=linear(),
    )
    last = Does(
        lambda own, x: F.linear(x, torch.cat([own.low.weight, own.high.weight])),
        low=nn.Linear(WIDTH, 100),
        high=nn.Linear(WIDTH, 156),
    )
    return stack(first, dense(), dense(), dense(), last)


@layer(weights=lambda: nn.ParameterList([matrix() for _ in range(3)]))
def parameter_list(own, x):
    for weight in own.weights:
        x = torch.tanh(x @ weight)
    return x


twice("forward_of_the_class", does(lambda own, x: torch.tanh(nn.Linear.forward(own.fc, x)), fc=linear))
twice(
    "reads_in_every_other_microbatch",  # it depends on the numbers that come in
    does(lambda own, x: own.fc(x) if x.sum() > 0 else F.linear(x, own.fc.weight, own.fc.bias), fc=linear),
)


@layer(fc=linear, scale=zero)
def functional_call(own, x):
    weights = {"weight": own.fc.weight * own.scale.exp(), "bias": own.fc.bias * 2}
    return torch.tanh(torch.func.functional_call(own.fc, weights, (x,)))


@shape
def layers_that_look_alike() -> Layers:
    """Two layers of equal modules and sizes, of which the second one reads its child's weight."""
    calls = Does(lambda own, x: torch.tanh(own.fc(x)), fc=linear())
    reads = Does(lambda own, x: torch.tanh(F.linear(x, own.fc.weight, own.fc.bias)), fc=linear())
    return stack(embedding(), calls, reads, dense(), dense(), head())


@layer(NOT_BITS, members=three(linear))
def ensemble_by_vmap(own, x):
    weights = torch.stack([member.weight for member in own.members])
    biases = torch.stack([member.bias for member in own.members])
    return torch.tanh(torch.vmap(F.linear, in_dims=(None, 0, 0))(x, weights, biases).mean(0))


# --- one weight several times ---------------------------------------------------------------------------------------
def two_with_one_weight() -> nn.Module:
    one, other = linear(), linear()
    other.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), other)


twice("two_modules_with_one_weight", two_with_one_weight)


@shape
def tied_between_layers() -> Layers:
    """Two layers of one stage or of two share a Linear inside a nested Sequential, and one reads it as a matrix."""
    shared = linear()
    one = nn.Sequential(nn.Sequential(shared, nn.Tanh()), nn.LayerNorm(WIDTH))
    other = nn.Sequential(nn.LayerNorm(WIDTH), nn.Sequential(nn.Sequential(shared), nn.Tanh()))
    third = Does(lambda own, x: torch.tanh(F.linear(x, own.fc.weight)), fc=shared)
    return stack(embedding(), one, other, third, dense(), head(), tied=True)


# --- parametrizations -----------------------------------------------------------------------------------------------
def scaled() -> nn.Module:
    """A parametrization with a weight of its own."""
    return Does(lambda own, weight: weight * own.scale, scale=nn.Parameter(torch.ones(WIDTH, 1)))


def parametrized(*parts: nn.Module) -> nn.Module:
    made = linear()
    for part in parts:
        parametrize.register_parametrization(made, "weight", part)
    return made


twice("old_weight_norm", lambda: tanh_of(torch.nn.utils.weight_norm(linear())))  # by a hook before the forward
twice("spectral_norm", lambda: tanh_of(parametrizations.spectral_norm(linear())), **CHANGES_BUFFERS)
symmetric = does(lambda own, weight: weight.triu() + weight.triu(1).t())
twice("own_parametrization", lambda: tanh_of(parametrized(symmetric(), scaled())))
twice(
    "parametrization_read_by_its_parent",
    does(lambda own, x: torch.tanh(own.fc(x) + F.linear(x, own.fc.weight)), fc=lambda: parametrized(scaled())),
)


# --- other layouts of memory, other types ---------------------------------------------------------------------------
twice(
    "weight_in_a_larger_tensor",
    changed(dense, lambda made: setattr(made[0].weight, "data", matrix(WIDTH, 2 * WIDTH).data[:, WIDTH:])),
    **NOT_BITS,
)


def two_in_one_memory() -> nn.Module:
    """One weight is some columns of another one: a step of the optimizer changes these twice."""
    made = does(
        lambda own, x: torch.tanh(x @ own.all[:, :WIDTH] + x @ own.some), all=lambda: matrix(WIDTH, 2 * WIDTH)
    )()
    made.some = nn.Parameter(made.all.data[:, :WIDTH])
    return made


twice("two_in_one_memory", two_in_one_memory, **NOT_BITS)


class InDouble(nn.Module):
    """Computes in float64, whatever the model's type."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def _apply(self, *_: Any, **__: Any) -> nn.Module:
        return self

    def forward(self, x: Tensor) -> Tensor:
        return (x.double() * self.scale).to(x.dtype)


twice("weight_of_another_type", lambda: nn.Sequential(linear(), InDouble(), nn.Tanh()))


def transposed() -> nn.Module:
    made = linear()
    made.weight = nn.Parameter(made.weight.detach().t().contiguous().t())
    return tanh_of(made)


twice("transposed_weight", transposed, **NOT_BITS)
twice(
    "channels_last",
    does(
        lambda own, x: torch.tanh(own.conv(x.unflatten(-1, (4, 4)))).flatten(-2),
        conv=lambda: nn.Conv2d(CONTEXT, CONTEXT, 3, padding=1).to(memory_format=torch.channels_last),
    ),
    **NOT_BITS,
)


# --- kinds of layers ------------------------------------------------------------------------------------------------
lstm = does(lambda own, x: own.rnn(x)[0], rnn=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True))
twice("lstm_whose_result_is_not_contiguous", lstm, **NOT_BITS)
twice("batch_norm", lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT), nn.Tanh()), **CHANGES_BUFFERS)
twice("batch_norm_in_eval", lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT).eval(), nn.Tanh()))
twice(
    "undeclared_batch_norm", lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT)), **refused("changes_buffers=True")
)
twice("in_place_on_a_product", lambda: nn.Sequential(linear(bias=False), nn.ReLU(inplace=True)))
twice("scalar_gate_of_zero", does(lambda own, x: x + own.alpha * torch.tanh(own.fc(x)), alpha=zero, fc=linear))
twice(
    "statistics_of_the_microbatch_alone",
    lambda: nn.Sequential(linear(), nn.BatchNorm1d(CONTEXT, track_running_stats=False), nn.Tanh()),
    reference="undivided",
    bits=False,
)
twice(
    "encoder_layer_norm_first",
    lambda: nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True, norm_first=True, bias=False),
)


@layer(fc=linear)
def in_place_on_a_part(own, x):
    y = own.fc(x)
    y[..., :4] *= 0.5
    y += 1
    return torch.tanh(y)


class Named(nn.Module):
    """Owns a weight, takes a tensor by its name, and makes a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = matrix()

    def forward(self, x: Tensor, scale: float = 1.0, *, other: Tensor) -> dict[str, Tensor]:
        return {"product": x @ self.weight * scale, "sum": other + self.weight.sum()}


@layer(named=Named)
def keywords_and_dictionaries(own, x):
    made = own.named(x, 0.5, other=x * 3)
    return torch.tanh(made["product"] + made["sum"])


@shape
def views() -> Layers:
    product = nn.Linear(CONTEXT * WIDTH, CONTEXT * WIDTH)
    part = Does(lambda own, x: own.fc(x)[..., :WIDTH].contiguous(), fc=nn.Linear(WIDTH, 2 * WIDTH))
    return stack(embedding(), nn.Flatten(), product, nn.Unflatten(1, (CONTEXT, WIDTH)), part, head())


def normed_dense() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), linear(), nn.Tanh())


words_and_places = does(
    lambda own, x: own.words(x) + own.places, words=lambda: frozen(embedding()), places=lambda: matrix(CONTEXT, WIDTH)
)
SHAPES["frozen_first_layers"] = Shape(
    lambda: stack(frozen(embedding()), frozen(dense()), frozen(dense()), dense(), dense(), head())
)
SHAPES["frozen_middle"] = Shape(
    lambda: stack(embedding(), dense(), frozen(normed_dense()), frozen(dense()), frozen(dense()), dense(), head())
)
SHAPES["frozen_head"] = Shape(lambda: stack(embedding(), dense(), dense(), dense(), frozen(head())))
SHAPES["frozen_embedding_with_positions"] = Shape(lambda: stack(words_and_places(), dense(), dense(), dense(), head()))
twice("unused_child", does(lambda own, x: own.fc(x).tanh(), fc=linear, unused=linear, norm=lambda: nn.LayerNorm(3)))
twice("frozen_bias", changed(dense, lambda made: made[0].bias.requires_grad_(False)))
twice("frozen_weight_trained_bias", changed(dense, lambda made: made[0].weight.requires_grad_(False)))


@layer(fc=linear, teacher=linear, norm=lambda: nn.LayerNorm(WIDTH))
def used_without_gradient(own, x):
    with torch.no_grad():
        other = own.teacher(x)
    return torch.tanh(own.fc(x)) + own.norm(other).detach()


TABLE = torch.linspace(-1, 1, CONTEXT * WIDTH).view(CONTEXT, WIDTH)

twice("table_of_the_file", does(lambda own, x: torch.tanh(own.fc(x * TABLE.to(x.dtype))), fc=linear))


@layer(refused(""), mean=lambda: torch.zeros(()), fc=linear)
def running_mean_as_an_attribute(own, x):
    own.mean = 0.5 * own.mean + 0.5 * x.detach().mean((0, 1))
    return torch.tanh(own.fc(x - own.mean))


CALLS = {"forwards": 0}


def late(count: int) -> float:  # a factor that changes long after the trial
    return 1.0 if count < 10_000 else 0.5


@layer(refused("keeps something"), counts=lambda: [0], fc=linear)
def counts_its_forwards(own, x):
    own.counts[0] += 1
    return torch.tanh(own.fc(x)) * late(own.counts[0])


@layer(refused("keeps something"), counts=lambda: {"of": torch.zeros(())}, fc=linear)
def counts_in_a_tensor(own, x):
    own.counts["of"] += 1
    return torch.tanh(own.fc(x)) * late(int(own.counts["of"]))


@layer(refused("keeps something"), fc=linear)
def counts_in_its_file(own, x):
    CALLS["forwards"] += 1
    return torch.tanh(own.fc(x)) * late(CALLS["forwards"])


@layer(refused("freezes it"), fc=linear, out=linear)
def freezes_a_part_by_its_input(own, x):
    own.fc.requires_grad_(bool(x.detach().abs().max() < 1))
    return torch.tanh(own.out(own.fc(x)))


@layer(kept=lambda: None, fc=linear)
def cache_that_is_made_in_the_first_forward(own, x):
    if own.kept is None:
        own.kept = torch.sin(torch.arange(CONTEXT * WIDTH, dtype=x.dtype, device=x.device)).view(CONTEXT, WIDTH)
    return torch.tanh(own.fc(x * own.kept))


@layer(refused("the first input decides"), mean=lambda: None, fc=linear)
def shifted_by_the_first_input(own, x):
    y = own.fc(x)
    if own.mean is None:
        own.mean = y.detach().mean((0, 1))
    return torch.tanh(y - own.mean)


class Passes(torch.autograd.Function):
    """Passes on its input, and a function of the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, of_gradient: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.of_gradient = of_gradient
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.of_gradient(gradient), None


def unit_length(gradient: Tensor) -> Tensor:
    return 0.1 * gradient / (gradient.norm() + 1e-9)


twice("gradient_reversal", does(lambda own, x: torch.tanh(own.fc(Passes.apply(x, torch.neg))), fc=linear))
twice(
    "clipped_by_a_function",
    does(lambda own, x: Passes.apply(torch.tanh(own.fc(x)), unit_length), fc=linear),
    **refused("not linear"),
)


@layer(refused("whose forward writes into its weight"), fc=linear, out=linear)
def loss_of_its_own(own, x):
    """Each layer trains itself, as in greedy learning."""
    with torch.enable_grad():
        y = torch.tanh(own.fc(x.detach()))
        (y - 1).square().mean().backward()
    return torch.tanh(own.out(x)) + y.detach()


@layer(refused("whose forward writes into its weight"), fc=lambda: None)
def made_in_the_first_forward(own, x):
    """The optimizer does not know these weights."""
    if own.fc is None:
        own.fc = linear().to(x.dtype)
    return torch.tanh(own.fc(x))


@refuse("weight")
def embedding_of_bounded_norm() -> Layers:
    """A forward writes into the weight: the vectors of its own tokens, so that replicas would differ."""
    return stack(nn.Embedding(256, WIDTH, max_norm=1.0), dense(), dense(), dense(), head())


expanded = does(lambda own, x: x * own.w, w=lambda: nn.Parameter(torch.ones(1).expand(WIDTH)))
twice("expanded_weight", expanded, **refused("is expanded"))  # no optimizer of torch's takes it


@layer(refused("writes into its weight"), query=linear, key=lambda: frozen(linear()))
def momentum_encoder(own, x):
    with torch.no_grad():
        own.key.weight.data = 0.9 * own.key.weight.data + 0.1 * own.query.weight.data
    return torch.tanh(own.query(x)) + own.key(x).detach()


@layer(refused("running_mean from one microbatch"), fc=linear, norm=lambda: nn.BatchNorm1d(WIDTH))
def statistics_by_data(own, x):
    """Nothing reads the buffer, and autograd does not see that it is written."""
    y = torch.tanh(own.fc(x))
    own.norm.running_mean.data.lerp_(y.detach().mean((0, 1)), 0.1)
    return y


def add_sizes(module: Any, _: Any, gradients: Any) -> None:
    module.sizes += gradients[0].abs().mean((0, 1))


def gather_sizes(made: nn.Module) -> None:
    """A hook gathers the sizes of gradients, as one that prunes does."""
    made.register_buffer("sizes", torch.zeros(WIDTH))
    made.register_full_backward_hook(add_sizes)


BACKWARD_CHANGES = {**CHANGES_BUFFERS, **refused("whose backward changes what the layer keeps")}
twice("sizes_of_gradients", changed(dense, gather_sizes), **BACKWARD_CHANGES)
twice(
    "batch_norm_in_a_checkpoint",  # which counts once more in the recomputation
    does(lambda own, x: x + checkpoint(own.norm, x, use_reentrant=False), norm=lambda: nn.BatchNorm1d(CONTEXT)),
    **BACKWARD_CHANGES,
)


@layer(CHANGES_BUFFERS, means=list, fc=linear)
def means_in_a_list(own, x):
    """No forward but those of the steps counts."""
    own.means.append(x.detach().mean((0, 1)))
    return torch.tanh(own.fc(x)) + torch.stack(own.means).mean(0)


@shape(**UNDIVIDED)
def gradients_by_frequency() -> Layers:
    """The gradient depends on how often a token is in the microbatch."""
    return stack(nn.Embedding(256, WIDTH, scale_grad_by_freq=True), dense(), dense(), dense(), head())


@shape
def bits_and_linear() -> Layers:
    read = Does(lambda own, x: own.fc(x.to(own.fc.weight.dtype)), fc=nn.Linear(32, 32))
    inside = [nn.Sequential(nn.Linear(32, 32), nn.ReLU(inplace=True)) for _ in range(3)]
    of_last = lambda logits, targets: F.cross_entropy(logits, targets[:, -1])  # noqa: E731
    return stack(nn.Sequential(Bits(torch.float32), read), *inside, nn.Linear(32, 256), loss=of_last)


class Cubed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 3


def replace_forward(fc: nn.Linear) -> None:
    fc.forward = lambda x: torch.tanh(F.linear(x, fc.weight * 2, fc.bias))


twice("derived_linear", lambda: Cubed(WIDTH, WIDTH))
twice("linear_with_another_forward", changed(linear, replace_forward))


# --- checkpoints and compiled code inside a layer ---------------------------------------------------------------------
def two_dense() -> nn.Module:
    return nn.Sequential(linear(), nn.Tanh(), linear())


@layer({"expect": "either", "words": "use_reentrant=True"}, inner=two_dense)
def reentrant_checkpoint_inside(own, x):
    return x + checkpoint(own.inner, x, use_reentrant=True)


@refuse("whose output has no gradient")
def reentrant_checkpoint_behind_frozen_layers() -> Layers:
    """Its input has no gradient, so that PyTorch trains nothing of the layer, whatever a hook on the embedding says."""
    first, inside = frozen(embedding()), [does(reentrant_checkpoint_inside, inner=two_dense)() for _ in range(2)]
    first.register_forward_hook(lambda _, given, y: y.requires_grad_(True))
    return stack(first, frozen(dense()), *inside, head())


@layer(refused("the newest forward"), fc=linear)
def checkpoint_that_reads_its_module(own, x):
    """What is recomputed is given the mask of another microbatch."""
    own.mask = x.detach() > 0
    return x + checkpoint(lambda y: torch.tanh(own.fc(y)) * own.mask, x, use_reentrant=False)


@layer(UNDIVIDED, fc=linear)
def checkpoint_that_draws(own, x):
    """A recomputation inside a layer draws what its forward drew, while other ranks of this process draw, too."""
    return x + checkpoint(lambda y: F.dropout(torch.tanh(own.fc(y)), 0.3), x, use_reentrant=False)


@layer(fc=linear)
def checkpoint_of_a_function(own, x):
    return x + checkpoint(lambda y: torch.tanh(own.fc(y)) @ own.fc.weight, x, use_reentrant=False)


@shape
def compiled_inside() -> Layers:
    inner = torch.compile(nn.Sequential(linear(), nn.Tanh()), backend="aot_eager", dynamic=False)
    block = Does(lambda own, x: own.fc(own.inner(x)), inner=inner, fc=linear())
    return stack(embedding(), dense(), block, dense(), head())


# --- hooks ----------------------------------------------------------------------------------------------------------
def scale(factor: float) -> Callable[..., Any]:
    """Return a hook that scales the gradients that it is given first."""
    return lambda _, gradients, *__: tuple(factor * gradient for gradient in gradients)


def hook_forward(made: nn.Sequential) -> None:
    made[0].register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    made[0].register_forward_hook(lambda _, given, y: y * 0.5 + given[0])


def hook_layer(made: nn.Module) -> None:
    made.register_full_backward_hook(scale(0.5))
    made.register_full_backward_pre_hook(scale(2))


def mask_gradient(gradient: Tensor) -> Tensor:
    return gradient * torch.ones_like(gradient).tril()


def halve_accumulated(weight: Tensor) -> None:
    weight.grad.mul_(0.5)


def mask_accumulated(weight: Tensor) -> None:
    weight.grad = weight.grad.tril()


reading = does(lambda own, x: torch.tanh(F.linear(x, own.fc.weight, own.fc.bias)), fc=linear)
twice("forward_hooks", changed(dense, hook_forward))
twice("backward_hook", changed(dense, lambda made: made[0].register_full_backward_hook(scale(0.5))))
twice(
    "backward_pre_hook_of_a_sequential", changed(dense, lambda made: made.register_full_backward_pre_hook(scale(0.1)))
)
twice("backward_hook_of_a_layer", changed(reading, hook_layer))
twice("hook_on_a_weight", changed(dense, lambda made: made[0].weight.register_hook(mask_gradient)))
twice("hook_on_a_weight_read_by_its_parent", changed(reading, lambda made: made.fc.weight.register_hook(mask_gradient)))
twice(
    "hook_after_a_gradient",
    changed(dense, lambda made: made[0].weight.register_post_accumulate_grad_hook(mask_accumulated)),
)
twice(
    "noise_in_a_pre_hook",
    changed(dense, lambda made: made.register_forward_pre_hook(lambda _, given: (F.dropout(given[0], 0.3),))),
    **UNDIVIDED,
)
twice(
    "clipped_by_a_hook",
    changed(dense, lambda made: made[0].weight.register_hook(lambda gradient: gradient.clamp(-100, 100))),
    **refused("not linear"),
)


twice(
    "clipped_behind_a_closed_gate",  # the gradients are 0 until the gate has learned, as with LoRA
    does(
        lambda own, x: x + own.gate * own.block(x),
        gate=zero,
        block=changed(dense, lambda made: made[0].weight.register_hook(lambda each: each.clamp(-1e-5, 1e-5))),
    ),
    **refused("not linear"),
)


@layer(
    refused("the first input decides"), mean=lambda: None, fc=linear, scale=lambda: nn.Parameter(torch.ones(()) / 1e6)
)
def first_input_behind_a_small_scale(own, x):
    y = own.fc(x)
    if own.mean is None:
        own.mean = y.detach().mean((0, 1))
    return x + own.scale * torch.tanh(y - own.mean)


twice(
    "larger_half_by_a_hook",  # twice the gradient gives twice the result, and yet two do not add up
    changed(dense, lambda made: made[0].weight.register_hook(lambda each: each * (each.abs() > each.abs().median()))),
    **refused("not linear"),
)
twice(
    "decay_by_a_hook",  # each microbatch would add it anew
    changed(
        dense, lambda made: made[0].weight.register_hook(lambda each, weight=made[0].weight.data: each + 1e-5 * weight)
    ),
    **refused("not linear"),
)


def fade(made: nn.Sequential) -> None:
    count = 0

    def hook(gradient: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return gradient * late(count)

    made[0].weight.register_hook(hook)


twice("counts_in_a_hook", changed(dense, fade), **refused("keeps something"))
twice(
    "scaled_after_a_gradient",  # with each microbatch anew
    changed(dense, lambda made: made[0].weight.register_post_accumulate_grad_hook(halve_accumulated)),
    **refused("not linear"),
)


def hook_by_input(made: nn.Sequential) -> None:
    made[0].register_forward_hook(lambda module, given, _: setattr(module, "given", given[0].detach()))
    made[0].register_full_backward_hook(lambda module, gradients, _: (gradients[0] * module.given.abs().mean(),))


def steps_at_once(made: nn.Module) -> nn.Module:
    """An optimizer inside the backward, which saves the memory of gradients."""
    optimizer = torch.optim.SGD(made.parameters(), 0.5)

    def step(weight: Tensor) -> None:
        optimizer.step()
        weight.grad = None

    for weight in made.parameters():
        weight.register_post_accumulate_grad_hook(step)
    return made


scaled_before = does(lambda own, x: torch.tanh(own.fc(x)) * own.known["scale"], fc=linear, known=lambda: {"scale": 1.0})
twice(
    "scaled_by_the_last_gradient",
    changed(
        scaled_before,
        lambda made: made.register_full_backward_hook(
            lambda own, _, gradients: own.known.update(scale=1 / (1 + float(gradients[0].abs().max())))
        ),
    ),
    **refused("makes something else of the same input"),
)
twice("backward_hook_that_reads_the_input", changed(dense, hook_by_input), **refused("the newest forward"))
SHAPES["optimizer_in_the_backward"] = Shape(
    lambda: stack(steps_at_once(embedding()), dense(), dense(), dense(), head()), **refused("whose backward writes")
)


@shape
def hooks_beside_a_shared_activation() -> Layers:
    """Weights of which only some are trained, in layers that share a module."""
    layers, shared = [dense(), dense(), dense()], nn.Tanh()
    for made in layers:
        made[1] = shared
        made[0].weight.register_hook(mask_gradient)
    return stack(embedding(), *layers, head())


@refuse("has a hook")
def hook_on_a_shared_weight() -> Layers:
    first, last = embedding(), nn.Linear(WIDTH, 256, bias=False)
    last.weight = first.weight
    first.weight.register_hook(lambda gradient: 0.5 * gradient)
    return Layers([first, dense(), dense(), dense(), last], mean_error, CONTEXT, tied=True)


@layer(refused("writes into its input"), fc=linear)
def writes_unseen_into_its_input(own, x):
    x.data.mul_(0.5)
    return torch.tanh(own.fc(x))


@refuse("with one buffer")
def one_norm_in_two_layers() -> Layers:
    norm = nn.BatchNorm1d(CONTEXT, affine=False)
    layers = [embedding(), nn.Sequential(linear(), norm), nn.Sequential(linear(), norm), dense(), head()]
    return Layers(layers, mean_error, CONTEXT, changes_buffers=True)


@refuse("running_mean of layer 1")
def reads_the_statistics_of_another_layer() -> Layers:
    norm = nn.Sequential(nn.BatchNorm1d(CONTEXT))
    last = Does(lambda own, x: own.fc(x - own.others[0][0].running_mean[:, None]), fc=head(), others=[norm])
    return Layers([embedding(), norm, dense(), dense(), last], mean_error, CONTEXT, changes_buffers=True)


@layer(fc=linear)
def hook_on_an_output(own, x):
    y = own.fc(x)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.5)
    return torch.tanh(y)


# --- random numbers, and other things that are not the input ----------------------------------------------------------
def drawing(draw: Callable[[Tensor], Tensor | float]) -> Callable[[], nn.Module]:
    return does(lambda own, x: torch.tanh(own.fc(x)) * draw(x), fc=linear)


GENERATOR = torch.Generator().manual_seed(0)

twice("dropout", lambda: nn.Sequential(linear(), nn.Dropout(0.3), nn.Tanh()), **UNDIVIDED)
twice(
    "dropout_of_a_read_weight",
    does(lambda own, x: torch.tanh(F.linear(x, F.dropout(own.fc.weight, 0.3, own.training))), fc=linear),
    **UNDIVIDED,
)
twice("python_random_number", drawing(lambda x: 1 + random.random()), **UNDIVIDED)
twice("numpy_random", drawing(lambda x: torch.from_numpy(np.random.rand(*x.shape)).to(x.dtype)), **UNDIVIDED)
twice("own_generator", drawing(lambda x: torch.rand(x.shape, generator=GENERATOR).to(x.dtype)), **refused("random"))
twice("system_random", drawing(lambda x: 1 + os.urandom(1)[0] / 256), **refused("random"))
twice(
    "asks_for_the_gradient_mode",
    does(lambda own, x: own.fc(x) * (1.1 if torch.is_grad_enabled() else 1.0), fc=linear),
    **refused("without a graph"),
)
twice(
    "own_generator_that_begins_anew",  # it draws the same numbers in each forward
    drawing(lambda x: torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(3)).to(x.dtype)),
)


# --- layers that read what is not their own ---------------------------------------------------------------------------
@refuse("layer 0")
def reads_another_layer_in_a_list() -> Layers:
    first = embedding()
    last = Does(lambda own, x: own.fc(F.linear(x, own.others[0].weight)), fc=nn.Linear(256, 256), others=[first])
    return stack(first, dense(), dense(), dense(), last)


@refuse("layer 1")
def reads_what_another_layer_kept() -> Layers:

    def keep(own: Any, x: Tensor) -> Tensor:
        own.kept = torch.tanh(own.fc(x))
        return own.kept * 1

    keeper = Does(keep, fc=linear())
    reader = Does(lambda own, x: torch.tanh(own.fc(x)) + keeper.kept, fc=linear())
    return stack(embedding(), keeper, dense(), dense(), reader, head())


@shape
def reads_a_frozen_layer() -> Layers:
    first = frozen(embedding())
    others = [first]
    last = Does(lambda own, x: F.linear(own.fc(x), others[0].weight), fc=linear())
    return stack(nn.Sequential(first, linear()), linear(), dense(), dense(), last)


@refuse("what another layer keeps")
def mask_in_a_context() -> Layers:
    """The first layer keeps something of its tokens in a dictionary, and a later layer uses it."""
    kept: dict[str, Tensor] = {}

    def keep(own: Any, x: Tensor) -> Tensor:
        kept["mask"] = x == 32
        return own.table(x)

    first = Does(keep, table=embedding())
    later = Does(lambda own, x: torch.tanh(own.fc(x)).masked_fill(kept["mask"][..., None], 0.0), fc=linear())
    return stack(first, dense(), dense(), later, head())


@refuse("what another layer keeps")
def activity_beside_a_batch_norm() -> Layers:
    """Layers may change their own buffers; but one hears from another how large its numbers are."""
    kept: dict[str, float] = {}

    def keep(own: Any, x: Tensor) -> Tensor:
        kept["size"] = float(x.detach().abs().mean())
        return torch.tanh(own.fc(x))

    later = Does(lambda own, x: torch.tanh(own.fc(x)) * kept.get("size", 1.0), fc=linear())
    layers = [embedding(), Does(keep, fc=linear()), nn.BatchNorm1d(CONTEXT), dense(), later, head()]
    return Layers(layers, mean_error, CONTEXT, changes_buffers=True)


@refuse("the newest forward")
def gradient_by_what_another_layer_kept() -> Layers:
    kept: dict[str, Tensor] = {}

    def keep(own: Any, x: Tensor) -> Tensor:
        kept["size"] = x.detach().abs().mean()
        return torch.tanh(own.fc(x))

    scaled = Does(lambda own, x: Passes.apply(own.fc(x), lambda gradient: gradient * kept["size"]), fc=linear())
    return stack(embedding(), Does(keep, fc=linear()), dense(), dense(), scaled, head())


def masking(keep: Callable[[Tensor, Tensor], Tensor], mask_of: Callable[[Tensor], Tensor | None]) -> Layers:
    """The first layer keeps with its output which tokens count, and later layers ask for it."""

    def later(own: Any, x: Tensor) -> Tensor:
        y, mask = torch.tanh(own.fc(x)), mask_of(x)
        return y if mask is None else keep(y * mask[..., None], mask)

    first = Does(lambda own, x: keep(own.table(x), x % 2 == 0), table=embedding())
    return stack(first, *(Does(later, fc=linear()) for _ in range(3)), head())


class Masked(Tensor):
    """A tensor of a class of its own."""


def with_attribute(y: Tensor, mask: Tensor) -> Tensor:
    y.mask = mask  # type: ignore[attr-defined]
    return y


NOT_PLAIN = refused("more than a plain tensor")
MASKS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
SHAPES["mask_as_an_attribute"] = Shape(lambda: masking(with_attribute, lambda x: getattr(x, "mask", None)), **NOT_PLAIN)
SHAPES["tensor_of_another_class"] = Shape(
    lambda: masking(
        lambda y, _: y.as_subclass(Masked), lambda x: torch.zeros(CONTEXT) if isinstance(x, Masked) else None
    ),
    **NOT_PLAIN,
)
SHAPES["mask_beside_a_tensor"] = Shape(
    lambda: masking(lambda y, mask: (MASKS.__setitem__(y, mask), y)[1], MASKS.get), **refused("a copy of its input")
)
twice("sparse_output", does(lambda own, x: own.fc(x).relu().to_sparse(), fc=linear), **NOT_PLAIN)


@shape
def tokens_as_numbers() -> Layers:
    """The second layer embeds what the first one passes on: it takes no other numbers than those of tokens."""
    first = Does(lambda own, x: x * own.one, one=frozen(nn.ParameterList([torch.ones(1)]))[0])
    return stack(first, Does(lambda own, x: own.table(x.long()), table=embedding()), dense(), dense(), head())


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for made in self:
            y = made(x)
            x = x + y if x.shape == y.shape else y
        return x


@refuse("a forward or a hook of its own")
def sequential_with_a_forward() -> Layers:
    return Layers(Residual(embedding(), dense(), dense(), dense(), head()), mean_error, CONTEXT)


@refuse("which reads weight of layer 4")
def tied_by_their_data() -> Layers:
    first, last = embedding(), nn.Linear(WIDTH, 256, bias=False)
    last.weight.data = first.weight.data
    return stack(first, dense(), dense(), dense(), last)


@refuse("which reads weight of layer 0")
def buffer_of_another_weight() -> Layers:
    first = embedding()
    last = Does(lambda own, x: own.fc(x) + F.linear(x, own.table), fc=head())
    last.register_buffer("table", first.weight.data)
    return stack(first, dense(), dense(), dense(), last)


# --- losses -----------------------------------------------------------------------------------------------------------
NOT_ROWS = refused("mean over the rows")


def each_error(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


LOSSES = {  # of one line
    "loss_of_the_last_token": (lambda logits, targets: F.cross_entropy(logits[:, -1], targets[:, -1]), {}),
    "label_smoothing": (lambda out, targets: F.cross_entropy(out.mT, targets, label_smoothing=0.1), {}),
    "loss_that_draws": (lambda logits, targets: mean_error(F.dropout(logits, 0.2), targets), refused("random")),
    "exponential_of_the_mean": (lambda logits, targets: (mean_error(logits, targets) / 4).exp(), NOT_ROWS),
    "a_small_part_that_is_no_mean": (lambda out, y: mean_error(out, y) + 1e-2 * out.std(correction=0), NOT_ROWS),
    "error_below_a_cap": (lambda out, targets: mean_error(out, targets).clamp(max=30), NOT_ROWS),
    "only_where_an_output_is_not_0": (
        lambda out, targets: (each_error(out, targets) * (out[..., 0] != 0)).sum() / (out[..., 0] != 0).sum(),
        NOT_ROWS,
    ),
    "ignore_index_of_another_token": (
        lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=32),
        NOT_ROWS,
    ),
    "sum_over_a_batch_of_known_size": (lambda out, targets: mean_error(out, targets) * len(targets) / 9, NOT_ROWS),
}
for name, (function, expected) in LOSSES.items():
    SHAPES[name] = Shape(lambda function=function: around(dense, function), **expected)


@loss(refused("keep nothing"))
def curriculum_by_calls(logits, targets):
    CALLS["losses"] = CALLS.get("losses", 0) + 1
    return mean_error(logits, targets) * late(CALLS["losses"])


@loss()
def masked_mean_of_each_row(logits, targets):
    """Padding counts nothing, and every row counts the same."""
    mask = targets != 0
    return ((each_error(logits, targets) * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


@loss()
def loss_that_writes_into_its_logits(logits, targets):
    logits /= 0.7
    return mean_error(logits, targets)


@loss()
def loss_that_writes_into_its_gradient(logits, targets):
    return Passes.apply(2 * mean_error(logits, targets), lambda gradient: gradient.mul_(0.5))


@loss(refused("writes into its targets"))
def loss_that_writes_into_its_targets(logits, targets):
    targets[targets == 32] = 95
    return mean_error(logits, targets)


@loss(NOT_ROWS)
def class_weight_of_one_token(logits, targets):
    """Its mean is one over the weights of the tokens."""
    weights = torch.ones(256)
    weights[0] = 0.1
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight=weights.to(logits))


@loss(NOT_ROWS)
def rows_against_each_other(logits, targets):
    """The rows of a microbatch are each other's wrong answers, as in CLIP."""
    one, other = logits[:, 0], logits[:, -1]
    return F.cross_entropy(one @ other.t(), torch.arange(len(one), device=one.device))


@loss(NOT_ROWS)
def loss_over_its_own_value(logits, targets):
    error = mean_error(logits, targets)
    return error / error.detach()


@loss(NOT_ROWS)
def easy_tokens_left_out(logits, targets):
    errors = each_error(logits, targets)
    chosen = (-errors).exp().detach() < 0.4
    return (errors * chosen).sum() / chosen.sum().clamp(min=1)


@loss(NOT_ROWS)
def hardest_tokens_of_many(logits, targets):
    errors = each_error(logits, targets).flatten()
    return errors.topk(min(len(errors), max(32, len(errors) // 4))).values.mean()


@refuse("mean over the rows")
def mask_beside_the_logits() -> Layers:
    """Layers pass on which tokens count, as 0 or 1; other numbers all count."""

    def loss(out: Tensor, targets: Tensor) -> Tensor:
        mask = out[..., -1].bool()
        return (each_error(out[..., :-1], targets) * mask).sum() / mask.sum().clamp(min=1)

    def beside(own: Any, x: Tensor) -> Tensor:
        return torch.cat([own.part(x[..., :-1]), x[..., -1:]], -1)

    first = Does(
        lambda own, x: torch.cat([own.table(x), (x != 0).to(own.table.weight)[..., None]], -1), table=embedding()
    )
    return stack(first, *(Does(beside, part=part) for part in (dense(), dense(), dense(), head())), loss=loss)


def penalty_on(index: int) -> Layers:
    layers = [embedding(), dense(), dense(), dense(), head()]
    penalised = layers[index]
    return stack(
        *layers, loss=lambda logits, targets: mean_error(logits, targets) + 0.1 * penalised.weight.pow(2).mean()
    )


SHAPES["penalty_on_the_embedding"] = Shape(lambda: penalty_on(0), **refused("layer 0"))
SHAPES["penalty_on_the_head"] = Shape(lambda: penalty_on(4), **refused("layer 4"))


@refuse("weight")
def head_of_the_loss_s_object() -> Layers:

    class Adaptive:
        def __init__(self) -> None:
            self.last = head()

        def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
            return mean_error(self.last(hidden), targets)

    return stack(embedding(), dense(), dense(), dense(), linear(), loss=Adaptive().loss)


@refuse("weight")
def temperature_in_the_loss() -> Layers:
    factor = nn.Parameter(torch.ones(()))
    return around(dense, lambda logits, targets: mean_error(logits * factor, targets) + 0.1 * factor.square())


@refuse("layer")
def loss_of_what_a_layer_kept() -> Layers:
    """The balance of a mixture of experts, kept by a layer and added by the loss."""

    def keep(own: Any, x: Tensor) -> Tensor:
        shares = own.gate(x).softmax(-1)
        own.balance = shares.mean((0, 1)).square().sum()
        return torch.tanh(own.fc(x)) * shares[..., :1]

    keeper = Does(keep, gate=nn.Linear(WIDTH, 3), fc=linear())
    balanced = lambda logits, targets: mean_error(logits, targets) + 0.1 * keeper.balance  # noqa: E731
    return stack(embedding(), keeper, dense(), dense(), head(), loss=balanced)


# --- what calls of the function share ---------------------------------------------------------------------------------
OUTSIDE, VECTORS = dense(), torch.ones(256, WIDTH)


@shape(**refused("layer 1 (Sequential), whose weights or buffers were made outside of the function"))
def made_outside() -> Layers:
    return stack(embedding(), OUTSIDE, dense(), head())


@shape(**refused("layer 0 (Embedding), whose weights or buffers were made outside of the function"))
def with_memory_from_outside() -> Layers:
    return stack(nn.Embedding.from_pretrained(VECTORS, freeze=False), dense(), dense(), head())
