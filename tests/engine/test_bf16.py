"""`dtype=bf16`: only products are in bf16, and the types between layers are known before the run.

`test_every_schedule.py` has that every pipeline equals its single process.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
import training
from one_process import by_one_process
from shapes import Does
from test_every_schedule import BF16, job_of, model_of
from threads import in_threads
from torch import nn

from microp.model import Layers, build_model, lowered_types, open_autocast
from microp.schedule.builders import gpipe
from microp.settings import AS_WRITTEN

MODELS = ("mlp", "gpt", "mixed", "tied")


def test_products_are_in_bf16_and_weights_gradients_and_optimizer_in_float32():
    for name in ("mlp", "gpt"):
        job = job_of(f"{name}, bf16", gpipe(1, 3))
        (lowered, *_), _ = by_one_process(job)
        (exact, *_), _ = by_one_process(replace(job, computing=AS_WRITTEN))
        assert lowered != exact
        assert lowered == pytest.approx(exact, rel=0.02)
    job = job_of("mlp, bf16", gpipe(1, 3), backend="threads")
    [(trainer, _)] = in_threads(1, partial(training.trained, job))
    weights = [weight for layer in trainer.layers.values() for weight in layer.parameters()]
    tensors = [each for weight in weights for each in (weight, weight.grad)]
    tensors += [each for state in trainer.optimizer.state.values() for each in state.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("computing", [BF16, AS_WRITTEN])
def test_the_types_between_layers_are_known_before_the_run(name, computing):
    settings = model_of(f"{name}, bf16")
    model = build_model(settings)
    x = torch.randint(0, 256, (3, settings.row_bytes))
    with open_autocast(computing, "cpu"):
        for index, layer in enumerate(model.build(range(settings.layers), 0)):
            if index:
                assert x.dtype is getattr(torch, settings.entering(index, computing)), index
            x = layer(x)
    both = {settings.entering(index, BF16) for index in range(1, settings.layers)}
    assert len(both) == (2 if name in ("mixed", "tied") else 1)


def test_a_layer_that_fails_under_autocast_is_named():
    def made(*layers, loss=lambda logits, targets: logits.mean()):
        return Layers([nn.Embedding(256, 8, device="meta"), *(layer.to("meta") for layer in layers)], loss, 4)

    def scatter(own, x):  # it works in float32, and not under autocast
        return torch.zeros_like(x, dtype=torch.float32).scatter_add(1, torch.zeros(x.shape, dtype=int), own.linear(x))

    assert lowered_types(made(nn.Linear(8, 8), nn.Tanh()), BF16) == ("int64", "float32", "bfloat16")
    with pytest.raises(ValueError, match=r"layer 1 \(Does\), which fails with dtype=bf16 for its input \[2, 4, 8\]"):
        lowered_types(made(Does(scatter, linear=nn.Linear(8, 8))), BF16)
    with pytest.raises(ValueError, match=r"a loss that fails with dtype=bf16 for \(output \[2, 4, 8\] bfloat16, targ"):
        lowered_types(made(nn.Linear(8, 8), loss=lambda logits, _: logits @ torch.ones(7)), BF16)


@pytest.mark.parametrize(("device", "left"), [("cpu", "bfloat16"), ("cuda", "float32")])
def test_a_gpu_s_autocast_keeps_other_types_than_a_cpu_s(device, left):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    with torch.device("meta"):
        layers = [nn.Embedding(256, 8), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), nn.Linear(8, 8)]
    made = Layers(layers, lambda logits, _: logits.mean(), 4)
    assert lowered_types(made, BF16, device) == ("int64", "float32", left)
    assert not torch.is_autocast_enabled(device)
