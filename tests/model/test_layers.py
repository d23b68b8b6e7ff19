"""Layers follow from (seed, index), whoever builds them."""

import pytest
import torch
from conftest import gpt, mlp
from training import digest

from microp.model import Dropout, build_model
from microp.model.layers import Bits
from microp.settings import MlpSettings

MODELS = [mlp(), gpt(), mlp("float64")]


@pytest.mark.parametrize("settings", MODELS[:2], ids=lambda m: m.name)
def test_a_layer_follows_from_seed_and_index_alone(settings):
    model = build_model(settings)
    torch.manual_seed(1)
    alone, before = model.layer(3, seed=5), torch.get_rng_state()
    neighbour, again, other = model.layer(2, seed=5), model.layer(3, seed=5), model.layer(3, seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert bits(model.layer(3, seed=5)) == bits(alone) == bits(again)
    assert bits(alone) not in (bits(neighbour), bits(other))


def bits(layer):
    return digest([weight.detach() for weight in layer.parameters()])


@pytest.mark.parametrize("settings", [*MODELS[1:3], MlpSettings("mlp", 1, 16, "float32")], ids=str)
def test_the_number_and_size_of_weights_follow_from_the_settings(settings):
    model = build_model(settings)
    weights = [p for index in range(model.layers) for p in model.layer(index, 0).parameters()]
    assert settings.weights == sum(p.numel() for p in weights)
    assert settings.weights * settings.weight_bytes == sum(p.nbytes for p in weights)
    if settings.name == "mlp":  # as many Linear layers as it says
        linear = [m for i in range(model.layers) for m in model.layer(i, 0).modules() if isinstance(m, torch.nn.Linear)]
        assert len(linear) == settings.layers
    assert Bits(torch.float32)(torch.tensor([[5, 255]])).tolist() == [[1, -1, 1, -1, -1, -1, -1, -1] + [1] * 8]


def test_gpt_sees_no_later_byte():
    model = build_model(gpt(dropout=0.0))
    layers = torch.nn.Sequential(*(model.layer(i, 0) for i in range(model.layers)))
    x = torch.randint(0, 256, (1, model.context))
    y = x.clone()
    y[0, 5] = (y[0, 5] + 1) % 256
    a, b = layers(x), layers(y)
    assert torch.equal(a[0, :5], b[0, :5])
    assert not torch.equal(a[0, 5:], b[0, 5:])


def test_dropout_follows_from_seed_step_and_microbatch():
    x = torch.ones(1000)

    def mask(seed, step, microbatch):
        dropout = Dropout(0.25, seed)
        dropout.at(step, microbatch)
        return dropout(x)

    assert torch.equal(mask(1, 2, 3), mask(1, 2, 3))
    for other in (mask(0, 2, 3), mask(1, 0, 3), mask(1, 2, 0)):
        assert not torch.equal(mask(1, 2, 3), other)
    assert mask(1, 2, 3).unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert 0.7 < (mask(1, 2, 3) > 0).float().mean() < 0.8
    assert Dropout(0.0, 1)(x) is x
