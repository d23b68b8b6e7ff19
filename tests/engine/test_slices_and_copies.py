"""Slices of a sequence train as the whole sequence does, and two copies of the model as one: float64, to 1e-12.

Over orders x shapes x checkpointing; copies stay equal bit for bit.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from random import Random

import pytest
import torch
import training
from conftest import CHECKPOINTING, gpt, mlp, small_job
from drawn import random_schedule, read
from one_process import assert_near, by_one_process, by_processes, by_threads
from own_model import mixed, of_all, peaks_of, settings_of
from shapes import Does
from threads import in_threads
from torch import nn

import microp
from microp.job import Job
from microp.model import Layers
from microp.schedule import skewed, uniform
from microp.schedule.builders import chimera, dualpipe, seq_1f1b, two_bp

# ranks, chunks, slices, stages per rank: below, at and above what fills the pipeline
SHAPES = [(1, 1, 2, 1), (1, 3, 4, 2), (2, 1, 2, 1), (2, 2, 4, 1), (2, 3, 3, 2)]
SHAPES += [(3, 1, 4, 1), (3, 4, 2, 1), (3, 2, 6, 2), (4, 5, 2, 1), (4, 3, 3, 2)]


def sliced_gpt(layers: int, tied: bool = False):
    return replace(gpt("float64", dropout=0.0), layers=layers, context=12, tied=tied)


@pytest.mark.parametrize("build", [seq_1f1b, partial(two_bp, of="seq_1f1b")], ids=["full", "divided"])
def test_slices_are_the_whole_sequence(build):
    modes, cuts = cycle(CHECKPOINTING), cycle((uniform, skewed))
    for ranks, chunks, slices, stages_per_rank in SHAPES:
        schedule = build(ranks, chunks, slices=slices, stages_per_rank=stages_per_rank)
        model = sliced_gpt(schedule.stages + 1, tied=chunks % 2 == 0)
        mode, cut = next(modes), next(cuts)
        job = small_job(mode, cut, schedule=schedule, model=model, batch_size=7, backend="threads")
        assert_near(by_threads(job), by_one_process(job))


SMALL_GPT = "model=gpt model.context=32 model.dim=32 chunks=4 schedule="
SLICED = "model=gpt model.context=32 model.dim=32 chunks=3 schedule=seq_1f1b schedule.slices=4 checkpointing="
MEMORY = [SLICED + mode for mode in CHECKPOINTING if mode != "except_last"]
MEMORY += [
    SMALL_GPT + words for words in ("two_bp", "zb_h1 checkpointing=segments", "dualpipe_v checkpointing=segments")
]
MEMORY += [f"model.dim=64 schedule={name} chunks=4" for name in ("gpipe", "zb_h1", "interleaved", "dualpipe", "zb_v")]


@pytest.mark.parametrize("words", MEMORY)
def test_memory_is_predicted_to_the_byte(words, tmp_path):
    """But for Adam's counts of steps and the losses that are there; slices hold keys, values, masks and gradients."""
    words += " model.layers=6 batch_size=12 comms=threads steps=2 tracking=disabled"
    summary = microp.measure(*words.split(), f"output_dir={tmp_path}").summary
    least, most = (36, 38) if "gpt" in words else (12, 12) if "dualpipe" in words else (6, 6)  # tensors of weights
    for predicted, measured in zip(summary["predicted"]["peak_memory_mib"], summary["peak_memory_mib"], strict=True):
        assert 4 * least <= (measured - predicted) * 2**20 <= 4 * most + 4 * 12
    assert "slices" not in words or summary["in_flight_peak"] == [1.25, 1.0]


@pytest.mark.parametrize("mode", ["never", "always", "segments"])
def test_memory_of_any_order_is_predicted_to_the_byte(mode):
    """Stages anywhere and in any turn, whole backwards beside divided ones; but for the same counts and losses."""
    random, model = Random(4), replace(mlp(), dim=64)
    trained = [
        s for s in (random_schedule(random) for _ in range(30)) if len(s.last_gradients) == s.stages
    ]  # all of it
    for order in [read("0F0 1F0 0F1 1F1 1I0 1W0 0I0 0W0 1I1 1W1 0I1 0W1", chunks=2), *trained]:
        rows = {"partition": uniform(6, order.stages), "batch_size": 30 * order.chunks}
        measured, predicted = peaks_of(small_job(mode, schedule=order, model=model, backend="threads", **rows))
        assert all(0 <= (one - other) * 2**20 <= 60 for one, other in zip(measured, predicted, strict=True)), order


COPIES = [(dualpipe, 2, 4), (dualpipe, 2, 8), (dualpipe, 4, 8), (dualpipe, 4, 10), (chimera, 2, 2), (chimera, 4, 2)]
COPIES += [(chimera, 4, 4), (chimera, 4, 6), (chimera, 6, 8), (partial(two_bp, of="chimera"), 4, 6)]
MODELS = [lambda: mlp("float64"), lambda: gpt("float64"), lambda: settings_of(mixed, dtype="float64", dropout=0.1)]


def jobs_of_copies() -> Iterator[Job]:
    models, modes, cuts = cycle(MODELS), cycle(CHECKPOINTING), cycle((uniform, skewed))
    for build, ranks, chunks in COPIES:
        model, schedule = next(models)(), build(ranks, chunks)
        if model.layers >= schedule.depth:
            backend = "threads" if ranks == 6 else "shm"
            yield small_job(next(modes), next(cuts), schedule=schedule, model=model, batch_size=13, backend=backend)


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_on_processes(ranks, tmp_path):
    """Six ranks are threads. On two there are slices too, and weights of two types in one mailbox."""
    jobs = [job for job in jobs_of_copies() if job.ranks == ranks]
    if ranks == 2:
        order, model = seq_1f1b(2, 3, 4), sliced_gpt(3)
        jobs += [small_job(mode, schedule=order, model=model, batch_size=7) for mode in CHECKPOINTING]
        jobs.append(small_job(schedule=chimera(2, 4), model=settings_of(two_types)))
    for job, trained in zip(jobs, by_processes(jobs, tmp_path) if ranks < 6 else map(by_threads, jobs), strict=True):
        near = {"rtol": 1e-5, "atol": 1e-6} if job.model.name == "two_types" else {}
        assert_near(trained, by_one_process(job), **near)


def two_types() -> Layers:
    """Weights that are float64 and, in another layout, float32: their gradients are sent together, as the wider one."""
    scaled = Does(
        lambda own, x: x * own.scale + own.shift,
        scale=nn.Parameter(torch.ones(8, 4).t()),
        shift=nn.Parameter(torch.zeros(8, dtype=torch.float64)),
    )
    head = nn.Linear(8, 256, dtype=torch.float64)
    return Layers([nn.Embedding(256, 8, dtype=torch.float64), scaled, head], of_all, 4)


@pytest.mark.parametrize("build", [dualpipe, chimera])
def test_copies_are_equal_bit_for_bit_after_ten_steps_of_adam(build):
    job = small_job(schedule=build(4, 8), model=mlp(), backend="threads")
    trainers = [trainer for trainer, _ in in_threads(4, lambda comms: training.trained(job, comms, 10))]
    for index in range(mlp().layers):
        one, other = (trainer.layers[index].parameters() for trainer in trainers if index in trainer.layers)
        assert all(map(torch.equal, one, other))
