"""Training by PyTorch alone: every optimizer and learning-rate schedule, and tied weights as one Parameter.

A pipeline equals microp's single process bit for bit; that equals PyTorch to 1e-12 in float64.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import training
from conftest import gpt, mlp, small_job
from own_model import chosen, settings_of, tied_layers
from threads import in_threads
from torch import nn

from microp.job import Job
from microp.model import build_model, open_data
from microp.schedule import uniform
from microp.schedule.builders import gpipe, zb_h1
from microp.settings import ADAM, SgdSettings
from microp.worker import monolith

STEPS = 4  # of the job's 4 training steps
OPTIMIZERS = {
    "adam": replace(ADAM, weight_decay=0.1, decay="cosine", warmup_steps=1, betas=[0.8, 0.95]),
    "adamw": replace(ADAM, name="adamw", weight_decay=0.1, decay="linear"),
    "sgd": SgdSettings("sgd", 0.01, "cosine", 2, 0.9),
    "sgd alone": SgdSettings("sgd", 0.0, "constant", 0, 0.0),
}
PLAIN = {  # the same, without microp
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-2, weight_decay=0.1, betas=(0.8, 0.95)),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.1),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-2, weight_decay=0.01, momentum=0.9),
    "sgd alone": lambda weights: torch.optim.SGD(weights, lr=1e-2),
}
RATES = {  # of the four steps
    "adam": [0.5e-2, 1e-2, 0.75e-2, 0.25e-2],
    "adamw": [1e-2, 0.75e-2, 0.5e-2, 0.25e-2],
    "sgd": [1e-2 / 3, 2e-2 / 3, 1e-2, 0.5e-2],
    "sgd alone": [1e-2] * 4,
}


def assert_trains_as_torch(job: Job, make_optimizer: Callable, rates: Sequence[float]) -> None:
    subject = build_model(job.model)
    model = nn.Sequential(*subject.build(range(job.model.layers), job.seed))
    for (first, name), *copies in job.model.tied_weights:  # one Parameter, as PyTorch has it
        for layer, path in copies:
            holder, _, last = path.rpartition(".")
            setattr(model[layer].get_submodule(holder), last, model[first].get_parameter(name))
    optimizer, windows = make_optimizer(model.parameters()), open_data(job.data, 9, job.model.row_bytes, job.seed)
    for step, (by_microp, rate) in enumerate(zip(monolith.steps(job, STEPS), rates, strict=True)):
        window = windows(step)
        loss = subject.loss(model(window[:, :-1]), window[:, 1:])
        assert loss.item() == pytest.approx(by_microp.loss, abs=1e-12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name):
    """torch's optimizers are not fused here, and the learning rates are written down."""
    job = small_job(schedule=gpipe(2, 1), model=mlp("float64"), optimizer=OPTIMIZERS[name])
    assert_trains_as_torch(job, PLAIN[name], RATES[name])


def test_a_weight_whose_first_gradient_comes_later_than_others():
    job = small_job(schedule=gpipe(2, 1), model=settings_of(chosen), optimizer=OPTIMIZERS["sgd"], seed=2)
    counts = [sum(map(len, step.gradients)) for step in monolith.steps(job, STEPS)]
    assert counts[0] < max(counts)
    assert_trains_as_torch(job, PLAIN["sgd"], RATES["sgd"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_pipeline_trains_as_one_process(name):
    job = small_job(schedule=zb_h1(2, 3), optimizer=OPTIMIZERS[name], backend="threads")
    _, (_, losses) = in_threads(2, lambda comms: training.trained(job, comms, STEPS))
    assert losses == [step.loss for step in monolith.steps(job, STEPS)]


TIED = {
    "gpt": lambda: replace(gpt("float64", dropout=0.0), layers=7, tied=True),
    "own": lambda: settings_of(tied_layers, dtype="float64"),
}


@pytest.mark.parametrize("name", TIED)
def test_tied_weights(name):
    """torch adds up each microbatch's gradients of all uses before those of the next one."""
    job = small_job(model=TIED[name](), schedule=gpipe(1, 3), partition=uniform(7, 1))
    assert_trains_as_torch(job, lambda weights: torch.optim.Adam(weights, lr=job.learning_rate), [1e-2] * STEPS)
