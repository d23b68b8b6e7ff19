"""Gradients and losses equal the single process's bit for bit, on real processes.

CASES lists schedules x chunks x partitions x checkpointing x models, which one launch for each number of ranks trains
one after another. On K ranks M goes below K, is no multiple of it, and does not divide the batch of 9 rows.
"""

from dataclasses import replace
from functools import partial
from itertools import cycle, product

import pytest
import torch
from conftest import CHECKPOINTING, gpt, mlp, small_job
from drawn import defined
from one_process import assert_equal, assert_near, by_one_process, by_processes, by_threads
from own_model import mixed, settings_of
from training import digest

from microp.schedule import Op, skewed, uniform
from microp.schedule import builders as schedules
from microp.schedule.builders import Drain, gpipe, naive, one_f_one_b, zb_h1
from microp.settings import EngineSettings

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


def job_of(schedule, cut, mode, model, **changes):
    return small_job(mode, cut, schedule=schedule, model=model, **changes)


@pytest.mark.parametrize(("ranks", "backend"), [(1, "shm"), (2, "shm"), (3, "shm"), (4, "shm"), (3, "gloo")])
def test_bit_for_bit(ranks, backend, whole, tmp_path):
    """Over gloo half of the cases without `--whole`: they are those of shm."""
    jobs = [
        job_of(build(ranks, chunks), uniform if ranks == 1 else cut, mode, model(), backend=backend)
        for build, chunks, cut, mode, model in (ALL if whole else CASES[:: 1 + (backend == "gloo")])
    ]
    for job, trained in zip(jobs, by_processes(jobs, tmp_path), strict=True):
        assert_equal(job, trained)


REORDERED = (schedules.seq_1f1b, schedules.dualpipe, schedules.chimera)  # test_slices_and_copies.py
OTHERS = [build for build in schedules.ORDERS.values() if build not in (naive, gpipe, one_f_one_b, *REORDERED)]
OTHERS += [
    partial(schedules.interleaved, warmup=schedules.Warmup.single),
    lambda ranks, chunks: schedules.interleaved(ranks, chunks, extra_warmup=1, overlap=True).apart,
]


def in_monolith_s_order(schedule) -> bool:
    """Whether every stage adds up its weights' gradients from the first microbatch to the last."""
    adds = {stage: [] for stage in range(schedule.stages)}
    for _, action in schedule:
        if action.op in (Op.B, Op.W):
            adds[action.stage].append(action.microbatch)
    return all(order == sorted(order) for order in adds.values())


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_schedule(ranks, whole, tmp_path):
    """All other builders, M below, at and above K and 2K; models, partitions and checkpointing take turns.

    Without `--whole` a builder has every third M on one number of ranks, and others on the next.
    """
    turns = cycle(product((mlp, gpt), CHECKPOINTING, (uniform, skewed)))
    numbers = range(1, 3 * ranks + 1) if whole else sorted({1, ranks - 1, ranks, ranks + 1, 2 * ranks, 2 * ranks + 1})
    jobs = []
    for number, build in enumerate(OTHERS):
        all_of_it = list(defined(build, ranks, numbers))
        for schedule in all_of_it if whole or len(all_of_it) < 3 else all_of_it[(number + ranks) % 3 :: 3]:
            model, mode, cut = next(turns)
            assert in_monolith_s_order(schedule)
            jobs.append(job_of(schedule, cut, mode, replace(model(), layers=schedule.stages + 1), batch_size=13))
    for job, trained in zip(jobs, by_processes(jobs, tmp_path), strict=True):
        assert_equal(job, trained)


OTHER_SUMS = {"last in, first out": (gpipe(3, 5, Drain.lifo), False), "W batched": (zb_h1(3, 5), True)}
MODELS = {
    "mlp": lambda: mlp("float64"),
    "gpt": lambda: gpt("float64"),
    "mixed": lambda: settings_of(mixed, dtype="float64", dropout=0.1),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sums", OTHER_SUMS)
def test_another_order_of_summation(model, sums):
    schedule, batch_weights = OTHER_SUMS[sums]
    engine = EngineSettings("microp", batch_weights)
    for mode in CHECKPOINTING:
        job = job_of(schedule, uniform, mode, MODELS[model](), engine=engine, backend="threads")
        assert_near(by_threads(job), by_one_process(job))


def test_the_gradient_is_the_batch_s():
    whole, split = (by_one_process(small_job(model=mlp("float64"), schedule=gpipe(1, chunks))) for chunks in (1, 4))
    assert_near(split, whole)


def test_a_wrong_gradient_is_seen():
    """The comparison can fail: one changed bit changes a digest."""
    weight, bias = by_one_process(small_job())[1][0]
    changed = weight.clone()
    changed.view(-1).view(torch.int32)[3] ^= 1
    assert digest([changed, bias]) != digest([weight, bias])
