"""Replicas end a step with the same bits, and these are the batch's gradients: a single process gives them too."""

import random
from dataclasses import replace
from functools import partial
from itertools import cycle, product

import pytest
import training
from conftest import CHECKPOINTING, gpt, mlp, small_job
from drawn import defined
from one_process import assert_near, by_one_process
from own_model import chosen, entered_again, mixed, settings_of
from threads import in_threads

from microp.comms import thread_comms
from microp.engine import ActionError
from microp.schedule import Partition, skewed, uniform
from microp.schedule import builders as schedules
from microp.settings import BucketSettings, SyncSettings
from microp.worker import RankError, launch_ranks

BUILDERS = list(schedules.ORDERS.values())
ROWS = 29  # divided neither by the replicas nor by the chunks
TINY = 0.002  # MiB: a stage of the small models has several buckets
SYNCS = {
    "naive": SyncSettings("naive", "library"),
    "flat": SyncSettings("flat", "library"),
    "ddp": BucketSettings("ddp", "library", TINY, TINY / 2),
    "naive direct": SyncSettings("naive", "direct"),
    "ddp direct": BucketSettings("ddp", "direct", TINY, TINY / 2),
    "naive ring": SyncSettings("naive", "ring"),
    "flat ring": SyncSettings("flat", "ring"),
    "ddp ring": BucketSettings("ddp", "ring", TINY, TINY / 2),
}
MODELS = {  # in float64, with a number of layers
    "mlp": lambda layers: replace(mlp("float64"), layers=layers),
    "gpt": lambda layers: replace(gpt("float64"), layers=layers),
    "mixed": lambda layers: settings_of(mixed, dtype="float64", dropout=0.1, middle=max(0, layers - 7)),
    "tied gpt": lambda layers: replace(gpt("float64"), layers=layers, tied=True),
}
SLICED = lambda layers: replace(gpt("float64", dropout=0.0), layers=layers)  # noqa: E731
TORCH = BucketSettings("torch_ddp", "library", TINY, TINY)


def cases(replicas: int, ranks: int, syncs, chunks: int, part: int = 1):
    """Every schedule with every sync, or a part of these pairs; models, partitions and checkpointing take turns."""
    turns = list(product(MODELS.values(), CHECKPOINTING.values(), (uniform, skewed)))
    random.Random(4).shuffle(turns)  # else a sync would always meet the same ones
    turns = cycle(turns)
    for (number, build), (turn, sync) in product(enumerate(BUILDERS), enumerate(syncs)):
        if (number + turn + ranks + replicas) % part:
            continue
        for schedule in defined(build, ranks, [chunks]):
            make, checkpointing, cut = next(turns)
            if sync.problems(schedule.name, bool(schedule.input_gradients), "shm"):
                continue
            model = (SLICED if schedule.slices * schedule.copies > 1 else make)(schedule.stages + 1)
            given = {"schedule": schedule, "model": model, "checkpointing": checkpointing, "cut": cut}
            yield small_job(**given, batch_size=ROWS, replicas=replicas, sync=sync)


def check(job, found: list[training.Left]) -> None:
    case = (job.schedule.name, job.replicas, job.sync, job.checkpointing.name, job.model.name)
    pipelines = [found[first : first + job.ranks] for first in range(0, len(found), job.ranks)]
    bits = [{index: own for left in pipeline for index, own in left.bits.items()} for pipeline in pipelines]
    assert all(own == bits[0] for own in bits), case
    assert len({pipeline[job.schedule.placement[0]].inputs for pipeline in pipelines}) == job.replicas
    got = {index: gradients for left in pipelines[0] for index, gradients in left.gradients.items()}
    lasts = {job.schedule.placement[stage] for stage in job.schedule.ends[1]}
    ends = [pipeline[last].losses for pipeline in pipelines for last in lasts]
    losses = [sum(shares) for shares in zip(*ends, strict=True)]
    assert_near((losses, [got[index] for index in range(job.model.layers)]), by_one_process(job))


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize(("ranks", "replicas"), [(1, 3), (2, 3)])
def test_threads(ranks, replicas, sync, whole):
    """Every eighth schedule; the others are with the next syncs, and all are with all with `--whole`."""
    every = list(cases(replicas, ranks, SYNCS.values(), 4))
    part = every if whole else list(cases(replicas, ranks, SYNCS.values(), 4, 8))
    assert {job.schedule.name for job in part} == {job.schedule.name for job in every}
    jobs = [job for job in part if job.sync == SYNCS[sync]]
    assert len(jobs) > 1
    for job in jobs:
        everyone = thread_comms(job.ranks, 20, job.replicas)
        check(job, in_threads(everyone, partial(training.train_replica, job)))


@pytest.mark.parametrize("sync", SYNCS)
def test_a_weight_that_nobody_uses_has_no_gradient(sync):
    """One that some replicas or copies use has; the optimizer leaves the others alone, as in one process."""
    model = settings_of(chosen)
    given = {"model": model, "cut": uniform, "batch_size": ROWS}
    jobs = [small_job(schedule=schedules.zb_h1(2, 3), replicas=2, sync=SYNCS[sync], **given)]
    if sync == "flat":
        jobs += [small_job(schedule=build(2, 4), **given) for build in (schedules.chimera, schedules.dualpipe)]
    for job in jobs:
        assert sum(map(len, by_one_process(job)[1])) < 3 * 3 + 2  # some expert has no gradient
        everyone = thread_comms(job.ranks, 20, job.replicas)
        check(job, in_threads(everyone, partial(training.train_replica, job)))


def test_torch_ddp_ends_the_step_in_which_a_weight_has_no_gradient(tmp_path):
    """Nothing of its bucket, and of those after it, would be summed."""
    job = small_job(schedule=schedules.gpipe(1, 3), model=settings_of(chosen), cut=uniform, replicas=2, sync=TORCH)
    with pytest.raises(RankError, match="0B2, step 0: a weight has no gradient, and sync=torch_ddp waits .* sync=ddp"):
        launch_ranks(job, tmp_path)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # where a trial has no graph
@pytest.mark.parametrize("sync", [BucketSettings("ddp", "library", 0.0001, 0.0001), SYNCS["flat"]])
def test_a_gradient_that_arrives_again_after_its_sum_has_started_ends_the_step(sync):
    given = {"model": settings_of(entered_again), "cut": uniform, "batch_size": ROWS, "replicas": 2}
    job = small_job(schedule=schedules.gpipe(1, 3), sync=sync, **given)
    trained = partial(in_threads, thread_comms(1, 20, 2), partial(training.train_replica, job))
    if sync.name == "flat":
        check(job, trained())
    else:
        with pytest.raises(ActionError, match="0B2, step 0: the gradient .* arrived again .* use sync=flat"):
            trained()


@pytest.mark.parametrize(("ranks", "replicas"), [(1, 2), (2, 3)])
def test_processes(ranks, replicas, whole, tmp_path):
    every = partial(cases, replicas, ranks, [*SYNCS.values(), TORCH], 3 if ranks == 1 else 4)
    jobs = list(every(1 if whole else 16))
    bare = schedules.interleaved(ranks, 4) if ranks > 1 else None  # the layer of its second stage has no weights
    model = MODELS["mixed"](8)
    for sync in (SYNCS["ddp ring"], TORCH) if bare else ():
        cut = Partition((4, 1, 1, 2))
        jobs.append(small_job(schedule=bare, model=model, partition=cut, replicas=replicas, sync=sync, batch_size=ROWS))
    results = launch_ranks(jobs[0], tmp_path, partial(training.train_replicas, jobs))
    assert all(any(job.sync == sync for job in jobs) for sync in (*SYNCS.values(), TORCH))
    for number, job in enumerate(jobs):
        check(job, [results[rank][number] for rank in range(job.processes)])
