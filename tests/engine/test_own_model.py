"""A model of one's own equals its single process, in every schedule and checkpointing mode."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
import ranks as rank_code
import torch
from conftest import CHECKPOINTING
from own_model import mixed, normed, own_job, passing, settings_of, tied_layers
from threads import in_threads

from microp.schedule import Partition, builders, skewed, uniform
from microp.schedule.builders import gpipe, one_f_one_b, zb_h1, zb_v
from microp.settings import EngineSettings, OwnSettings
from microp.worker import launch_ranks, monolith

BUILDERS = [name for name in builders.__all__ if name not in ("Drain", "from_file")]


@cache
def model_of(dtype: str, dropout: float = 0.1):
    return settings_of(mixed, dtype=dtype, dropout=dropout)


@cache
def expected(dtype: str, chunks: int):
    return expected_of(model_of(dtype), chunks)


def expected_of(model: OwnSettings, chunks: int):
    done = list(monolith.steps(own_job(model, schedule=gpipe(1, chunks)), rank_code.STEPS))
    return [step.loss for step in done], done[-1].gradients


def schedule_of(name: str, ranks: int):
    """A schedule of this builder with a number of microbatches that it is defined for."""
    for chunks in (4, 6, 8, 9):
        try:
            return getattr(builders, name)(ranks, chunks)
        except ValueError:
            continue
    raise AssertionError(name)


def run_in_threads(job):
    """The losses, and the gradients of every layer; each rank is a thread."""
    results = in_threads(job.ranks, lambda comms: rank_code.train(job, comms))
    losses = results[job.schedule.placement[job.schedule.stages - 1]][0]
    return losses, {index: own for _, layers in results for index, own in layers.items()}


@pytest.mark.parametrize("name", BUILDERS)
def test_every_schedule_and_checkpointing_mode_bit_for_bit(name, whole):
    """Without `--whole` every other mode is on two ranks, the others on three, and for the next schedule conversely."""
    for turn, (mode, ranks) in enumerate(product(CHECKPOINTING, (2, 3))):
        if not whole and (turn + turn // 2 + BUILDERS.index(name)) % 2:
            continue
        schedule = schedule_of(name, ranks)
        cut = skewed if ranks == 3 else uniform
        model = model_of("float32")
        job = own_job(
            model,
            schedule=schedule,
            partition=cut(model.layers, schedule.stages),
            checkpointing=CHECKPOINTING[mode],
            backend="threads",
        )
        losses, layers = run_in_threads(job)
        want_losses, want = expected("float32", schedule.chunks)
        assert losses == want_losses, (mode, ranks)
        assert [rank_code.digest(layers[i]) for i in range(model.layers)] == list(map(rank_code.digest, want))


@pytest.mark.parametrize("mode", CHECKPOINTING)
def test_other_sums_to_1e_12(mode):
    """W of several microbatches at once."""
    job = own_job(
        model_of("float64"),
        schedule=zb_h1(3, 4),
        checkpointing=CHECKPOINTING[mode],
        backend="threads",
        engine=EngineSettings("microp", True),
    )
    losses, layers = run_in_threads(job)
    want_losses, want = expected("float64", 4)
    assert losses == pytest.approx(want_losses, abs=1e-12)
    for index, gradients in enumerate(want):
        for mine, theirs in zip(layers[index], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_processes_and_torch_s_engine(tmp_path):
    """Each rank imports the function itself."""
    model = model_of("float32")
    torch_engine = EngineSettings("torch", False)
    jobs = [
        own_job(model, schedule=zb_v(2, 4), checkpointing=CHECKPOINTING["segments"]),
        own_job(model, schedule=one_f_one_b(2, 3), engine=torch_engine),
        own_job(model, schedule=gpipe(2, 3), engine=torch_engine, checkpointing=CHECKPOINTING["always"]),
    ]
    shared = settings_of(tied_layers)
    jobs += [
        own_job(shared, schedule=zb_h1(2, 3)),
        own_job(shared, schedule=gpipe(2, 3), engine=torch_engine),
        own_job(settings_of(passing), schedule=zb_v(2, 8), partition=Partition((2, 2, 1, 2))),
    ]
    jobs = [replace(job, backend="gloo") for job in jobs]
    results = launch_ranks(jobs[0], tmp_path, 3, partial(rank_code.train_all, jobs))
    for number, job in enumerate(jobs):
        losses, want = expected_of(job.model, job.schedule.chunks)
        got = {index: bits for rank in range(2) for index, bits in results[rank][number][1].items()}
        assert [got[index] for index in range(job.model.layers)] == list(map(rank_code.digest, want)), number
        assert results[job.schedule.placement[job.schedule.stages - 1]][number][0] == losses


def test_declared_buffers_are_those_of_the_single_process():
    """Every schedule forwards microbatches in order, so that running statistics are the same."""
    model = settings_of(normed)
    done = list(monolith.steps(own_job(model, schedule=gpipe(1, 3)), rank_code.STEPS))
    losses, layers = run_in_threads(own_job(model, schedule=one_f_one_b(2, 3), backend="threads"))
    assert losses == [step.loss for step in done]
    assert [rank_code.digest(layers[i]) for i in range(5)] == [rank_code.digest(own) for own in done[-1].gradients]
