"""Tied weights: the gradients of their copies are summed, wherever the layers are, and equal the single process's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from conftest import gpt, small_job
from own_model import settings_of, tied_layers
from torch import nn

from microp.model import Model, build_model, open_data
from microp.schedule import uniform
from microp.schedule.builders import gpipe
from microp.worker import monolith

MODELS = {
    "gpt": lambda dtype: replace(gpt(dtype, dropout=0.0), layers=7, tied=True),
    "own": lambda dtype: settings_of(tied_layers, dtype=dtype),
}


@cache
def model_of(name: str, dtype: str):
    return MODELS[name](dtype)


def test_the_copies_of_the_facts():
    facts = model_of("own", "float32").facts
    assert facts.tied == (
        ((0, "weight"), (6, "weight")),
        ((2, "weight"), (3, "0.weight"), (4, "weight")),
        ((2, "bias"), (4, "bias")),
    )


def tied_by_torch(name: str) -> tuple[Model, nn.Module]:
    """The model, and all its layers with one Parameter for each tied weight, as PyTorch has it."""
    settings = model_of(name, "float64")
    subject = build_model(settings)
    model = nn.Sequential(*subject.build(range(7), 7))
    for (layer, inside), *copies in settings.tied_weights:
        weight = model[layer].get_parameter(inside)
        for other, path in copies:
            holder, _, last = path.rpartition(".")
            setattr(model[other].get_submodule(holder), last, weight)
    return subject, model


@pytest.mark.parametrize("name", MODELS)
def test_one_process_trains_as_torch_with_one_parameter(name):
    """float64, to 1e-12: torch adds up each microbatch's gradients of all uses before those of the next one."""
    job = small_job(model=model_of(name, "float64"), schedule=gpipe(1, 3), partition=uniform(7, 1))
    losses = [step.loss for step in monolith.steps(job, 4)]
    subject, model = tied_by_torch(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    windows = open_data(job.data, 9, job.model.row_bytes, job.seed)
    for step, expected_loss in enumerate(losses):
        window = windows(step)
        loss = subject.loss(model(window[:, :-1]), window[:, 1:])
        assert loss.item() == pytest.approx(expected_loss, abs=1e-12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
