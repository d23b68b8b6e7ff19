"""Schedules with two copies of the model train as one process does, and the copies stay equal bit for bit."""

from __future__ import annotations

from functools import partial
from itertools import cycle

import pytest
import torch
from conftest import CHECKPOINTING, gpt, mlp, small_job
from one_process import assert_near, by_one_process, by_processes, by_threads
from own_model import mixed, settings_of
from threads import in_threads

from microp.comms import thread_comms
from microp.schedule import skewed, uniform
from microp.schedule.builders import chimera, dualpipe
from microp.worker.trainer import Trainer

SHAPES = [(dualpipe, 2, 4), (dualpipe, 2, 8), (dualpipe, 4, 8), (dualpipe, 4, 10), (chimera, 2, 2), (chimera, 4, 2)]
SHAPES += [(chimera, 4, 4), (chimera, 4, 6), (chimera, 6, 8)]
MODELS = [lambda: mlp("float64"), lambda: gpt("float64"), lambda: settings_of(mixed, dtype="float64", dropout=0.1)]


def jobs(backend: str):
    models, modes, cuts = cycle(MODELS), cycle(CHECKPOINTING), cycle((uniform, skewed))
    for build, ranks, chunks in SHAPES:
        model, schedule = next(models)(), build(ranks, chunks)
        if model.layers >= schedule.depth:
            yield small_job(
                schedule=schedule,
                partition=next(cuts)(model.layers, schedule.depth),
                checkpointing=CHECKPOINTING[next(modes)],
                model=model,
                batch_size=13,
                backend=backend,
            )


def test_copies_train_as_one_process_does():
    for job in jobs("threads"):
        assert_near(by_threads(job), by_one_process(job))


@pytest.mark.parametrize("ranks", [2, 4])
def test_on_processes(ranks, tmp_path):
    every = [job for job in jobs("shm") if job.ranks == ranks]
    for job, trained in zip(every, by_processes(every, tmp_path), strict=True):
        assert_near(trained, by_one_process(job))


def ten_steps(job, comms):
    trainer = Trainer(job, comms)
    for step in range(10):
        trainer.load(step)
        trainer.step(step)
    return {index: [w.detach().clone() for w in layer.parameters()] for index, layer in trainer.layers.items()}


@pytest.mark.parametrize("build", [dualpipe, chimera])
def test_copies_are_equal_bit_for_bit_after_ten_steps_of_adam(build):
    job = small_job(schedule=build(4, 8), model=mlp(), partition=uniform(mlp().layers, 4), backend="threads")
    held = in_threads(thread_comms(4), partial(ten_steps, job))
    for layer in range(mlp().layers):
        one, other = (ranks[layer] for ranks in held if layer in ranks)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
