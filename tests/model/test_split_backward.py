"""B and W together are the full backward, bit for bit, for any module that owns weights."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import CHECKPOINTING, mlp
from torch import nn
from torch.autograd.graph import get_gradient_edge

from microp.device import ActivationMeter
from microp.model import Batch, Stage, build_model
from microp.model.split_backward import Deferred, SplitBackward, run_together
from microp.model.weight_gradients import SMALL

ONE = torch.ones(())


class TwoInTwoOut(nn.Module):
    """Owns a weight, takes a tensor by keyword, and gives a dict."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x, scale=1.0, *, other):
        return {"a": x @ self.weight * scale, "b": other + self.weight.sum()}


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = TwoInTwoOut()

    def forward(self, x):
        out = self.inner(x, 2.0, other=x * 3)
        return out["a"] + out["b"]


class Tied(nn.Module):
    """One layer twice, and its weight once more in another."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(self.first(x))))


class Scaled(nn.Module):
    """Writes into a part of what a Linear has made."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        y[..., :4].mul_(0.5)
        return y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


MODULES = {
    "linear": (nn.Linear(8, 5), (4, 8)),
    "linear 3d": (nn.Linear(8, 5), (2, 3, 8)),
    "without bias": (nn.Linear(8, 5, bias=False), (4, 8)),
    "norm": (nn.LayerNorm(8), (4, 8)),
    "deep": (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3))), (4, 8)),
    "convolution": (nn.Conv1d(8, 3, 2), (2, 8, 6)),
    "attention": (Attention(), (2, 5, 8)),
    "tied": (Tied(), (4, 8)),
    "tied 3d": (Tied(), (2, 3, 8)),
    "in place": (nn.Sequential(nn.Linear(8, 5), nn.ReLU(inplace=True)), (4, 8)),
    "in place 3d": (nn.Sequential(nn.Linear(8, 5), nn.ReLU(inplace=True)), (2, 3, 8)),
    "in place 3d without bias": (nn.Sequential(nn.Linear(8, 5, bias=False), nn.ReLU(inplace=True)), (2, 3, 8)),
    "a part in place": (Scaled(), (4, 8)),
    "a part in place 3d": (Scaled(), (2, 3, 8)),
    "keywords and dicts": (Joined(), (4, 8)),
}


REORDERED = ("attention",)  # its input is used several times: the parts of its gradient add up in another order


@pytest.mark.parametrize("name", MODULES)
def test_b_and_w_are_the_full_backward(name):
    module, shape = MODULES[name]
    whole, split = copy.deepcopy(module).double(), copy.deepcopy(module).double()
    tolerance = 1e-12 if name in REORDERED else 0.0
    backward = SplitBackward([split])
    for _ in range(2):  # gradients add up
        x = torch.randn(shape, dtype=torch.float64)
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        deferred = backward.deferred = Deferred()
        y, z = split(mine), whole(theirs)
        assert torch.equal(y, z)
        g = torch.randn_like(y)
        before = [None if p.grad is None else p.grad.clone() for p in split.parameters()]
        found = deferred.backward(get_gradient_edge(y), g, mine, backward)
        assert all(p.grad is b or torch.equal(p.grad, b) for p, b in zip(split.parameters(), before, strict=True))
        z.backward(g)
        torch.testing.assert_close(found, theirs.grad, rtol=0, atol=tolerance)
        deferred.run()
        for a, b in zip(split.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=tolerance)


def divide(module: nn.Module, x: torch.Tensor) -> Deferred:
    """Forward and B of the module's sum; W is left."""
    backward = SplitBackward([module])
    deferred = backward.deferred = Deferred()
    loss = module(x).sum()
    deferred.backward(get_gradient_edge(loss), ONE, x, backward)
    return deferred


def test_several_microbatches_w_can_be_one_product():
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3, bias=False)).double()
    whole, backward, several = copy.deepcopy(module), SplitBackward([module]), []
    for rows in (4, 3, 4):
        x = torch.randn(rows, 8, dtype=torch.float64)
        whole(x).square().sum().backward()
        deferred = backward.deferred = Deferred()
        several.append(deferred)
        deferred.backward(get_gradient_edge(module(x).square().sum()), ONE.double(), x, backward)
    run_together(several)
    for a, b in zip(module.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)
    assert not any(deferred.linears or deferred.graphs for deferred in several)


def test_a_linear_may_be_used_once_in_one_step_and_twice_in_the_next():
    torch.manual_seed(0)
    module = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)])
    whole, backward, deferred = copy.deepcopy(module), SplitBackward([module]), Deferred()
    for uses in ((0, 1), (0, 0, 1), (1, 0), (0, 1)):
        x = torch.randn(5, 32, requires_grad=True)
        results = []
        for layers in (whole, module):
            backward.deferred = deferred if layers is module else None
            y = x
            for use in uses:
                y = layers[use](y).relu()
            results.append(y.sum())
        results[0].backward()
        deferred.backward(get_gradient_edge(results[1]), ONE, x, backward)
        deferred.run()
        for a, b in zip(module.parameters(), whole.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_an_input_that_is_written_after_its_forward_is_refused():
    layer = nn.Linear(4, 4)
    backward = SplitBackward([layer])
    deferred = backward.deferred = Deferred()
    x = torch.randn(2, 4)
    loss = layer(x).sum()
    x.zero_()
    with pytest.raises(RuntimeError, match="written in place"):
        deferred.backward(get_gradient_edge(loss), ONE, x, backward)


def test_an_embedding_has_no_input_gradient():
    table = nn.Embedding(10, 4)
    deferred = divide(table, torch.tensor([1, 1, 3]))
    assert table.weight.grad is None
    assert len(deferred.graphs) == 1
    deferred.run()
    assert table.weight.grad[:, 0].tolist() == [0, 2, 0, 1, 0, 0, 0, 0, 0, 0]


def test_without_deferred_nothing_is_divided():
    layer = nn.Linear(4, 4)
    backward = SplitBackward([layer])
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.weight.grad is not None
    deferred = backward.deferred = Deferred()
    with torch.no_grad():
        layer(torch.randn(2, 4))
    assert deferred.linears == []
    assert deferred.graphs == []


@pytest.mark.parametrize("name", CHECKPOINTING)
def test_what_is_held_between_b_and_w_is_counted(name):
    """After B: of each of four Linear layers its input and its output's gradient; after W nothing."""
    rows, dim = 10, 32
    size = rows * dim * 4
    model = build_model(mlp())
    stage = Stage([model.layer(i, 0) for i in range(1, 5)], None, CHECKPOINTING[name], 1, [0])
    stage.load(Batch(0, None, None, [1.0]))
    meter = ActivationMeter([stage])
    with meter:
        stage.forward(0, torch.randn(rows, dim))
        stage.backward(0, torch.ones(rows, dim))
        meter.peak_bytes = 0
        meter.look()
        assert meter.peak_bytes == 8 * size
        stage.weight_gradient(0, None)
        meter.peak_bytes = 0
        meter.look()
        assert meter.peak_bytes == 0


@pytest.mark.parametrize("change", ["rows", "transposed", "no gradient", "type"])
def test_what_was_found_for_one_w_is_not_used_for_one_that_differs(change):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    whole, backward, deferred = copy.deepcopy(layers), SplitBackward([layers]), Deferred()
    for step in range(6):
        differs = step in (3, 4)
        x = torch.randn(300 if differs and change == "rows" else 32, 32)
        if differs and change == "transposed":
            x = x.t()
        if differs and change == "no gradient":
            for weight in (layers[2].weight, whole[2].weight, layers[0].bias, whole[0].bias):
                weight.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=differs and change == "type"):
            backward.deferred = deferred
            loss = layers(x).sum()
            other = whole(x).sum()
        other.backward()
        deferred.backward(get_gradient_edge(loss), ONE, x, backward)
        deferred.run()
        for a, b in zip(layers.parameters(), whole.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)


def test_a_stage_without_weights_has_an_empty_w():
    stage = Stage([nn.ReLU()], None, CHECKPOINTING["never"], 1, [0])
    stage.forward(0, torch.randn(2, 4))
    stage.backward(0, torch.ones(2, 4))
    stage.weight_gradient(0, None)


@pytest.mark.parametrize("rows", [1, 3, 16, 200, 300])
@pytest.mark.parametrize("dim", [24, 200], ids=["small products", "large products"])
def test_products_are_added_with_the_bits_of_autograd(dim, rows):
    assert (4 * dim * dim > SMALL) == (dim == 200)
    layers = [nn.Sequential(nn.Linear(dim, dim), nn.ReLU()), nn.Linear(dim, dim + 8)]
    found = []
    for split in ((), range(3)):
        torch.manual_seed(rows)
        stage = Stage(copy.deepcopy(layers), None, CHECKPOINTING["never"], 3, split)
        for microbatch in range(3):
            x, gradient = torch.randn(rows, dim), torch.randn(rows, dim + 8)
            stage.forward(microbatch, x)
            stage.backward(microbatch, gradient)
            if split:
                stage.weight_gradient(microbatch, None)
        found.append([weight.grad for weight in stage.layers.parameters()])
    assert all(map(torch.equal, *found))
