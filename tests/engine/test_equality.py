"""Gradients and losses equal the monolith's bit for bit, on real processes.

CASES lists schedules x chunks x partitions x checkpointing x models, which one launch for each number of ranks trains
one after another. On K ranks M goes below K, is no multiple of it, and does not divide the batch of 9 rows.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, product

import pytest
import torch
import training
from conftest import CHECKPOINTING, gpt, mlp, small_job

from microp.job import Job
from microp.schedule import Op, skewed, uniform
from microp.schedule import builders as schedules
from microp.schedule.builders import Drain, gpipe, naive, one_f_one_b, zb_h1
from microp.settings import EngineSettings
from microp.worker import launch_ranks, monolith

BUILDERS = list(schedules.ORDERS.values())
MODELS = {"mlp": mlp, "gpt": gpt}


@cache
def expected(name: str, chunks: int, layers: int | None = None, batch_size: int = 9):
    """The monolith's losses, and a digest of each layer's gradients."""
    model = MODELS[name]() if layers is None else replace(MODELS[name](), layers=layers)
    job = small_job(schedule=gpipe(1, chunks), model=model, batch_size=batch_size)
    done = list(monolith.steps(job, training.STEPS))
    return [step.loss for step in done], [training.digest(layer) for layer in done[-1].gradients]


CASES = [  # schedule, M, partition, checkpointing, model: every pair of values occurs
    (naive, 1, skewed, "except_last", gpt),
    (naive, 2, uniform, "except_last", mlp),
    (naive, 2, uniform, "always", gpt),
    (naive, 3, skewed, "segments", gpt),
    (naive, 5, uniform, "except_last", gpt),
    (naive, 5, uniform, "always", mlp),
    (naive, 8, uniform, "never", mlp),
    (gpipe, 1, uniform, "always", gpt),
    (gpipe, 1, uniform, "segments", gpt),
    (gpipe, 2, skewed, "never", gpt),
    (gpipe, 3, skewed, "never", mlp),
    (gpipe, 5, skewed, "segments", mlp),
    (gpipe, 8, uniform, "except_last", gpt),
    (gpipe, 8, skewed, "segments", gpt),
    (one_f_one_b, 1, uniform, "never", mlp),
    (one_f_one_b, 2, uniform, "segments", gpt),
    (one_f_one_b, 3, uniform, "except_last", mlp),
    (one_f_one_b, 3, skewed, "always", gpt),
    (one_f_one_b, 5, skewed, "never", mlp),
    (one_f_one_b, 8, uniform, "always", gpt),
]
ALL = [*product((naive, gpipe, one_f_one_b), (1, 2, 3, 5, 8), (uniform, skewed), CHECKPOINTING, (mlp, gpt))]


@pytest.mark.parametrize(("ranks", "backend"), [(1, "shm"), (2, "shm"), (3, "shm"), (4, "shm"), (3, "gloo")])
def test_bit_for_bit(ranks, backend, whole, tmp_path):
    jobs = []
    for build, chunks, cut, mode, model in ALL if whole else CASES:
        if ranks == 1 and cut is skewed:  # one rank has all layers
            cut = uniform
        jobs.append(
            small_job(
                schedule=build(ranks, chunks),
                partition=cut(model().layers, ranks),
                checkpointing=CHECKPOINTING[mode],
                model=model(),
                backend=backend,
            )
        )
    results = launch_ranks(jobs[0], tmp_path, 3, partial(training.train_all, jobs))
    for number, job in enumerate(jobs):
        losses, layers = expected(job.model.name, job.schedule.chunks)
        case = (job.schedule.name, job.schedule.chunks, job.partition, job.checkpointing.name, job.model.name)
        got = {}
        for rank in range(ranks):
            got |= results[rank][number][1]
        assert results[ranks - 1][number][0] == losses, case
        assert [got[index] for index in range(job.model.layers)] == layers, case


OTHERS = [b for b in BUILDERS if b not in (naive, gpipe, one_f_one_b)]


def defined(build, ranks: int, numbers):
    """The schedules of a builder, which says for which numbers of microbatches it is not defined."""
    for chunks in numbers:
        with suppress(ValueError):
            yield build(ranks, chunks)


def in_monolith_s_order(schedule) -> bool:
    """Whether every stage adds up its weights' gradients from the first microbatch to the last."""
    adds = {stage: [] for stage in range(schedule.stages)}
    for _, action in schedule:
        whole = action.op is Op.B and (action.stage, action.microbatch) not in schedule.split
        if whole or action.op is Op.W:
            adds[action.stage].append(action.microbatch)
    return all(order == sorted(order) for order in adds.values())


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_schedule(ranks, whole, tmp_path):
    """All other builders, M below, at and above K and 2K; models, partitions and checkpointing take turns.

    Without `--whole` a builder has every third M on one number of ranks, and others on the next.
    """
    turns = cycle(product((mlp, gpt), CHECKPOINTING.values(), (uniform, skewed)))
    jobs = []
    numbers = sorted({1, ranks - 1, ranks, ranks + 1, 2 * ranks, 2 * ranks + 1})
    if whole:
        numbers = range(1, 3 * ranks + 1)
    for number, build in enumerate(OTHERS):
        schedules_of = list(defined(build, ranks, numbers))
        part = schedules_of if whole or len(schedules_of) < 3 else schedules_of[(number + ranks) % 3 :: 3]
        for schedule in part:
            make, checkpointing, cut = next(turns)
            assert in_monolith_s_order(schedule)
            model = replace(make(), layers=schedule.stages + 1)
            jobs.append(
                small_job(
                    schedule=schedule,
                    model=model,
                    partition=cut(model.layers, schedule.stages),
                    checkpointing=checkpointing,
                    batch_size=13,
                )
            )
    results = launch_ranks(jobs[0], tmp_path, 3, partial(training.train_all, jobs))
    for number, job in enumerate(jobs):
        case = (job.schedule.name, job.schedule.chunks, job.partition.sizes, job.checkpointing.name)
        losses, layers = expected(job.model.name, job.schedule.chunks, job.model.layers, 13)
        got = {index: bits for rank in range(ranks) for index, bits in results[rank][number][1].items()}
        assert [got[index] for index in range(job.model.layers)] == layers, case
        last = job.schedule.placement[job.schedule.stages - 1]
        assert results[last][number][0] == losses, case


OTHER_SUMS = {"last in, first out": (gpipe(3, 5, Drain.lifo), False), "W batched": (zb_h1(3, 5), True)}


def job_of_other_sums(model: str, checkpointing: str, sums: str) -> Job:
    subject = MODELS[model]("float64")
    schedule, batch_weights = OTHER_SUMS[sums]
    return small_job(
        schedule=schedule,
        engine=EngineSettings("microp", batch_weights),
        partition=uniform(subject.layers, 3),
        model=subject,
        checkpointing=CHECKPOINTING[checkpointing],
    )


@pytest.fixture(scope="module")
def other_sums(tmp_path_factory):
    """Of all these jobs, in one launch: (model, checkpointing, sums) -> (the job, what each rank returned)."""
    jobs = {case: job_of_other_sums(*case) for case in product(MODELS, CHECKPOINTING, OTHER_SUMS)}
    every = list(jobs.values())
    results = launch_ranks(every[0], tmp_path_factory.mktemp("sums"), 3, partial(training.train_all_tensors, every))
    return {
        case: (job, [results[rank][number] for rank in range(3)]) for number, (case, job) in enumerate(jobs.items())
    }


@pytest.mark.parametrize("sums", OTHER_SUMS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_another_order_of_summation(model, checkpointing, sums, other_sums):
    """float64, to 1e-12."""
    job, ranks = other_sums[model, checkpointing, sums]
    *_, want = monolith.steps(job, training.STEPS)
    got = {index: grads for _, layers in ranks for index, grads in layers.items()}
    for index, gradients in enumerate(want.gradients):
        for mine, theirs in zip(got[index], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert ranks[2][0][-1] == pytest.approx(want.loss, abs=1e-12)


def test_the_gradient_is_the_batch_s():
    """Weighting each microbatch by its rows gives the gradient of the whole batch's mean."""
    [whole], [split] = (
        list(monolith.steps(small_job(model=mlp("float64"), schedule=gpipe(1, chunks)), 1)) for chunks in (1, 4)
    )
    for mine, theirs in zip(split.gradients, whole.gradients, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_wrong_gradient_is_seen():
    """The comparison can fail: one changed bit changes a digest."""
    [step] = monolith.steps(small_job(), 1)
    weight, bias = step.gradients[0]
    changed = weight.clone()
    changed.view(-1).view(torch.int32)[3] ^= 1
    assert training.digest([changed, bias]) != training.digest([weight, bias])
