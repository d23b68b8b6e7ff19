"""`dtype=bf16`: every pipeline equals its single process bit for bit, and only products are in bf16."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
import torch
import training
from conftest import CHECKPOINTING, gpt, mlp, small_job
from own_model import mixed, settings_of, tied_layers
from threads import in_threads
from torch import nn

from microp.model import Layers, build_model, lowered_types, open_autocast
from microp.schedule import builders, skewed, uniform
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from microp.settings import AS_WRITTEN, Computing, EngineSettings
from microp.worker import Trainer, launch_ranks, monolith

BF16 = Computing("bf16")
BUILDERS = [build.__name__ for build in builders.ORDERS.values()]
MODELS = ("mlp", "gpt", "mixed", "tied")


@cache
def model_of(name: str):
    """A model of at least 7 layers; layers of `mixed` send float32 and bf16, `tied` sums weights across stages."""
    if name in ("mlp", "gpt"):
        return replace(mlp() if name == "mlp" else gpt(), layers=7)
    return settings_of(mixed, BF16, dropout=0.1) if name == "mixed" else settings_of(tied_layers, BF16)


def job_of(name: str, schedule, **changes):
    model = model_of(name)
    cut = changes.pop("cut", uniform)(model.layers, schedule.stages)
    return small_job(**{"schedule": schedule, "model": model, "partition": cut, "computing": BF16, **changes})


@cache
def expected(name: str, chunks: int, batch_size: int = 9):
    done = list(monolith.steps(job_of(name, gpipe(1, chunks), batch_size=batch_size), training.STEPS))
    return [step.loss for step in done], list(map(training.digest, done[-1].gradients))


def schedule_of(name: str, ranks: int):
    """A schedule of this builder with a number of microbatches that it is defined for."""
    for chunks in (3, 4, 6, 8):
        try:
            return getattr(builders, name)(ranks, chunks)
        except ValueError:
            continue
    raise AssertionError(name)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_schedule_and_checkpointing_mode_bit_for_bit(name, whole):
    """On two and on three ranks, on both with `--whole`; the models take turns."""
    for turn, (mode, ranks) in enumerate(product(CHECKPOINTING, (2, 3))):
        if not whole and (turn + turn // 2 + BUILDERS.index(name)) % 2:
            continue
        schedule = schedule_of(name, ranks)
        model = MODELS[(turn + turn // 4 + BUILDERS.index(name)) % len(MODELS)]
        cut = skewed if ranks == 3 else uniform
        job = job_of(model, schedule, cut=cut, checkpointing=CHECKPOINTING[mode], backend="threads")
        results = in_threads(ranks, partial(training.train, job))
        losses, want = expected(model, schedule.chunks)
        layers = {index: own for _, part in results for index, own in part.items()}
        case = (name, mode, ranks, model)
        assert results[schedule.placement[schedule.stages - 1]][0] == losses, case
        assert [training.digest(layers[index]) for index in range(job.model.layers)] == want, case


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_processes_bit_for_bit(backend, tmp_path):
    """Tensors of two bytes per number in mailboxes and on sockets; torch's own runtime needs sockets."""
    jobs = [
        job_of(name, build(2, 4), checkpointing=CHECKPOINTING[mode], batch_size=8, backend=backend)
        for name, build, mode in (
            ("mlp", one_f_one_b, "segments"),
            ("mixed", zb_h1, "except_last"),
            ("gpt", interleaved, "always"),
            ("tied", zb_v, "never"),
        )
    ]
    if backend == "gloo":
        by_torch = EngineSettings("torch", False)
        jobs += [
            job_of(name, build(2, 4), checkpointing=CHECKPOINTING[mode], batch_size=8, backend=backend, engine=by_torch)
            for name, build, mode in (
                ("mlp", gpipe, "never"),
                ("mixed", one_f_one_b, "always"),
                ("gpt", interleaved, "segments"),
            )
        ]
    results = launch_ranks(jobs[0], tmp_path, 3, partial(training.train_all, jobs))
    for number, job in enumerate(jobs):
        losses, want = expected(job.model.name.removesuffix("_layers"), 4, 8)
        case = (job.model.name, job.engine.name)
        assert results[job.schedule.placement[job.schedule.stages - 1]][number][0] == losses, case
        got = {index: bits for rank in range(2) for index, bits in results[rank][number][1].items()}
        assert [got[index] for index in range(job.model.layers)] == want, case


def test_products_are_in_bf16_and_weights_gradients_and_optimizer_in_float32():
    for name in ("mlp", "gpt"):
        losses, _ = expected(name, 3)
        [exact] = monolith.steps(replace(job_of(name, gpipe(1, 3)), computing=AS_WRITTEN), 1)
        assert losses[0] != exact.loss
        assert losses[0] == pytest.approx(exact.loss, rel=0.02)

    def trained(comms):
        trainer = Trainer(job_of("mlp", gpipe(1, 3), backend="threads"), comms)
        trainer.load(0)
        trainer.step(0)
        return trainer

    [trainer] = in_threads(1, trained)
    weights = [weight for layer in trainer.layers.values() for weight in layer.parameters()]
    tensors = [each for weight in weights for each in (weight, weight.grad)]
    tensors += [each for state in trainer.optimizer.state.values() for each in state.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("computing", [BF16, AS_WRITTEN])
def test_the_types_between_layers_are_known_before_the_run(name, computing):
    """Here those that the layers really make."""
    settings = model_of(name)
    model = build_model(settings)
    x = torch.randint(0, 256, (3, settings.row_bytes))
    with open_autocast(computing, "cpu"):
        for index, layer in enumerate(model.build(range(settings.layers), 0)):
            if index:
                assert x.dtype is getattr(torch, settings.entering(index, computing)), index
            x = layer(x)
    both = {settings.entering(index, BF16) for index in range(1, settings.layers)}
    assert len(both) == (2 if name in ("mixed", "tied") else 1)


class Scatter(nn.Module):
    """A layer that works in float32, and not under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.zeros_like(x, dtype=torch.float32).scatter_add(1, torch.zeros(x.shape, dtype=int), self.linear(x))


def test_a_layer_that_fails_under_autocast_is_named():
    def made(*layers, loss=lambda logits, targets: logits.mean()):
        return Layers([nn.Embedding(256, 8, device="meta"), *(layer.to("meta") for layer in layers)], loss, 4)

    assert lowered_types(made(nn.Linear(8, 8), nn.Tanh()), BF16) == ("int64", "float32", "bfloat16")
    with pytest.raises(ValueError, match=r"layer 1 \(Scatter\), which fails with dtype=bf16 for its input \[2, 4, 8\]"):
        lowered_types(made(Scatter()), BF16)
    with pytest.raises(ValueError, match=r"a loss that fails with dtype=bf16 for \(output \[2, 4, 8\] bfloat16, targ"):
        lowered_types(made(nn.Linear(8, 8), loss=lambda logits, _: logits @ torch.ones(7)), BF16)


@pytest.mark.parametrize(("device", "left"), [("cpu", "bfloat16"), ("cuda", "float32")])
def test_a_gpu_s_autocast_keeps_other_types_than_a_cpu_s(device, left):
    """A layer that ends with a LayerNorm would send float32 on a GPU, and the receiver would take bf16."""
    if device == "cuda" and not torch.backends.cuda.is_built():
        pytest.skip("this torch has no CUDA")
    with torch.device("meta"):
        layers = [nn.Embedding(256, 8), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), nn.Linear(8, 8)]
    made = Layers(layers, lambda logits, _: logits.mean(), 4)
    assert lowered_types(made, BF16, device) == ("int64", "float32", left)
    assert not torch.is_autocast_enabled(device)
