"""What a stage keeps, and that running again gives the same."""

import pytest
import torch
from conftest import CHECKPOINTING, gpt, mlp
from torch.utils.checkpoint import checkpoint_sequential

from microp.model import Batch, Stage, build_model
from microp.settings import Checkpointing


def make(checkpointing, chunks=3, model=None, first=1, last=5):
    model = build_model(model or mlp())
    stage = Stage([model.layer(i, 0) for i in range(first, last)], None, checkpointing, chunks)
    stage.load(Batch(0, None, None, [1.0] * chunks))
    return stage


def run(stage, chunks=3):
    torch.manual_seed(0)
    xs = [torch.randn(4, 32) for _ in range(chunks)]
    outputs = [stage.forward(m, x) for m, x in enumerate(xs)]
    inputs = [stage.backward(m, torch.ones_like(y)) for m, y in enumerate(outputs)]
    return outputs, inputs, [p.grad for p in stage.layers.parameters()]


def test_segments_equal_torch_s_checkpoint_sequential():
    _, [mine, *_], gradients = run(make(Checkpointing("segments", 2, False), 1), 1)
    model = build_model(mlp())
    layers = torch.nn.Sequential(*(model.layer(i, 0) for i in range(1, 5)))
    torch.manual_seed(0)
    x = torch.randn(4, 32, requires_grad=True)
    checkpoint_sequential(layers, 2, x, use_reentrant=False).sum().backward()
    assert torch.equal(mine, x.grad)
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, layers.parameters(), strict=True))


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


NINETY = Checkpointing("segments", 99, False)  # more segments than layers are one per layer
KEPT = [("never", 1, [True] * 3), ("except_last", 1, [False, False, True]), ("always", 1, [False] * 3)]


@pytest.mark.parametrize(("name", "kept", "graphs"), [*KEPT, ("segments", 2, [False] * 3), ("99", 4, [False] * 3)])
def test_what_is_kept(name, kept, graphs):
    stage = make(CHECKPOINTING.get(name, NINETY))
    for microbatch in range(3):
        stage.forward(microbatch, torch.randn(4, 32))
    assert [len(stage.kept[m]) for m in range(3)] == [kept] * 3
    assert [stage.kept[m][0].root is not None for m in range(3)] == graphs
    stage.backward(0, torch.ones(4, 32))
    assert sorted(stage.kept) == [1, 2]


def test_dropout_is_the_same_in_the_recomputation():
    def once(name):
        stage = make(CHECKPOINTING[name], 1, gpt(dropout=0.5), 1, 4)
        torch.manual_seed(0)
        y = stage.forward(0, torch.randn(2, 8, 16))
        torch.manual_seed(99)
        return [y, stage.backward(0, torch.ones_like(y)), *(p.grad for p in stage.layers.parameters())]

    for name in ("always", "segments"):
        assert all(torch.equal(a, b) for a, b in zip(once(name), once("never"), strict=True))


@pytest.mark.parametrize("name", CHECKPOINTING)
def test_recomputation_changes_no_bit_and_is_timed(name):
    stage = make(CHECKPOINTING[name])
    for mine, theirs in zip(run(stage), run(make(CHECKPOINTING["never"])), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert bool(stage.recomputations) == (name != "never")


def test_a_loss_that_is_not_one_number_is_refused():
    stage = Stage([torch.nn.Linear(2, 2)], lambda output, _: output.sum(1), CHECKPOINTING["never"], 1)
    stage.load(Batch(0, None, [torch.ones(3)], [1.0]))
    stage.forward(0, torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"the loss has the shape \[3\]: it has to be one number"):
        stage.backward(0, None)


@pytest.mark.parametrize("split", [(), (0, 1)])
def test_losses_are_weighted_by_their_share_of_the_batch(split):
    layer = torch.nn.Linear(2, 1)
    stage = Stage([layer], lambda output, target: (output - target).square().mean(), CHECKPOINTING["never"], 2, split)
    rows = [torch.randn(3, 2), torch.randn(1, 2)]
    want = sum(share * (layer(x) - 1).square().mean() for share, x in zip((0.75, 0.25), rows, strict=True))
    gradients = torch.autograd.grad(want, list(layer.parameters()))
    stage.load(Batch(0, None, [torch.ones(3, 1), torch.ones(1, 1)], [0.75, 0.25]))
    for microbatch in (1, 0):
        stage.forward(microbatch, rows[microbatch])
        stage.backward(microbatch, None)
        if split:
            stage.weight_gradient(microbatch, None)
    assert sum(stage.weighted_losses()).item() == pytest.approx(want.item(), rel=1e-6)
    for weight, gradient in zip(layer.parameters(), gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient)
