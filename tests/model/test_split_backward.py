"""What B leaves for W, and that W adds with the bits of autograd; `shapes.py` has models of every kind."""

import copy

import pytest
import torch
from conftest import CHECKPOINTING
from torch import nn
from torch.autograd.graph import get_gradient_edge

from microp.model import Batch, Stage
from microp.model.split_backward import Deferred, SplitBackward
from microp.model.weight_gradients import SMALL

ONE = torch.ones(())


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


def test_an_input_that_is_written_is_refused_an_embedding_has_no_input_gradient_and_else_nothing_is_divided():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    backward = SplitBackward([layer])
    deferred = backward.deferred = Deferred()
    loss = layer(x).sum()
    x.zero_()  # after its forward
    with pytest.raises(RuntimeError, match="written in place"):
        deferred.backward(get_gradient_edge(loss), ONE, x, backward)

    table, tokens = nn.Embedding(10, 4), torch.tensor([1, 1, 3])
    backward = SplitBackward([table])
    deferred = backward.deferred = Deferred()
    deferred.backward(get_gradient_edge(table(tokens).sum()), ONE, tokens, backward)
    assert (table.weight.grad, len(deferred.graphs)) == (None, 1)
    deferred.run()
    assert table.weight.grad[:, 0].tolist() == [0, 2, 0, 1, 0, 0, 0, 0, 0, 0]

    layer = nn.Linear(4, 4)
    backward = SplitBackward([layer])
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.weight.grad is not None
    deferred = backward.deferred = Deferred()
    with torch.no_grad():
        layer(torch.randn(2, 4))
    assert (deferred.linears, deferred.graphs) == ([], [])


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


@pytest.mark.parametrize("name", CHECKPOINTING)
@pytest.mark.parametrize("module", [torch.nn.Flatten(), torch.nn.Identity()])
@pytest.mark.parametrize("split", [(), (0,)])
def test_what_a_stage_only_passes_on_has_memory_of_its_own(name, module, split):
    """The memory of what it is given is a mailbox, which is written again while the result is still used."""
    stage = Stage([module], None, CHECKPOINTING[name], 1, split)
    stage.load(Batch(0, None, None, [1.0]))
    x = torch.randn(4, 32)
    y = stage.forward(0, x)
    g = torch.randn(4, 32)
    back = stage.backward(0, g)
    if split:
        stage.weight_gradient(0, None)
    assert torch.equal(x, y)
    assert torch.equal(g, back)
    assert len({tensor.untyped_storage().data_ptr() for tensor in (x, y, g, back)}) == 4
