"""Tied weights: the gradients of their copies are summed, wherever the layers are, and equal the single process's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import cycle

import pytest
import torch
import training
from conftest import CHECKPOINTING, gpt, small_job
from own_model import settings_of, tied_layers
from test_own_model import run_in_threads, schedule_of
from torch import nn

from microp.job import Snapshot
from microp.model import Model, build_model, open_data
from microp.schedule import builders, skewed, uniform
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_v
from microp.settings import SnapshotSettings
from microp.store import snapshots
from microp.worker import monolith, run_threads

BUILDERS = [build.__name__ for build in builders.ORDERS.values()]


MODELS = {
    "gpt": lambda dtype: replace(gpt(dtype, dropout=0.0), layers=7, tied=True),
    "own": lambda dtype: settings_of(tied_layers, dtype=dtype),
}


@cache
def model_of(name: str, dtype: str):
    return MODELS[name](dtype)


@cache
def expected(name: str, dtype: str, chunks: int):
    model = model_of(name, dtype)
    job = small_job(model=model, schedule=gpipe(1, chunks), partition=uniform(7, 1))
    done = list(monolith.steps(job, training.STEPS))
    return [step.loss for step in done], list(map(training.digest, done[-1].gradients))


def test_the_copies_of_the_facts():
    facts = model_of("own", "float32").facts
    assert facts.tied == (
        ((0, "weight"), (6, "weight")),
        ((2, "weight"), (3, "0.weight"), (4, "weight")),
        ((2, "bias"), (4, "bias")),
    )


@pytest.mark.parametrize("name", BUILDERS)
def test_every_schedule_bit_for_bit(name):
    """Both ends are on one rank with one rank, and with stages laid out as a V; the own model's others on one stage."""
    modes = cycle(CHECKPOINTING.values())
    for ranks, model in ((1, "gpt"), (2, "gpt"), (2, "own"), (3, "own")):
        schedule = schedule_of(name, ranks)
        if schedule.stages > 7:
            continue
        cut = skewed if ranks == 2 else uniform
        job = small_job(
            model=model_of(model, "float32"),
            schedule=schedule,
            partition=cut(7, schedule.stages),
            checkpointing=next(modes),
            backend="threads",
        )
        losses, layers = run_in_threads(job)
        want_losses, want = expected(model, "float32", schedule.chunks)
        assert losses == want_losses, (model, ranks)
        assert [training.digest(layers[index]) for index in range(7)] == want, (model, ranks)


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


EVERY_2 = SnapshotSettings("disk", 2, 9, False, None, True)


def test_a_snapshot_has_every_copy_and_other_ranks_go_on(tmp_path):
    model = model_of("gpt", "float32")

    def run(name: str, **changes) -> dict[str, torch.Tensor]:
        job = small_job(**{"model": model, "steps": 4, "snapshot": EVERY_2, "backend": "threads", **changes})
        (tmp_path / name).mkdir()
        run_threads(job, tmp_path / name)
        found = torch.load(tmp_path / name / "weights.pt", weights_only=True)
        assert torch.equal(found["0.0.byte"], found["6.2.weight"])
        return found

    whole = run("whole", schedule=one_f_one_b(3, 4))
    source = Snapshot(str(snapshots.snapshot_folder(tmp_path / "whole", 2)), 2)
    for schedule in (gpipe(1, 4), zb_v(2, 4), interleaved(2, 4)):
        resumed = run(schedule.name, schedule=schedule, resumed=source)
        assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    tied = tied_by_torch("gpt")[1].float()
    tied.load_state_dict(whole)
    assert tied[0][0].byte is tied[6][2].weight
