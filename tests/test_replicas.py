"""Replicas end a step with the same bits, and these are the batch's gradients: a single process gives them too."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, product

import pytest
import ranks as rank_code
import torch
from conftest import CHECKPOINTING, gpt, make_plan, mlp

from microp import launch, monolith, schedules
from microp.comms import ThreadComms, thread_comms
from microp.comms.base import Summed
from microp.partition import skewed, uniform
from microp.replicate import BucketSettings, SyncSettings

BUILDERS = [getattr(schedules, name) for name in schedules.__all__ if name not in ("Drain", "from_file")]
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
TORCH = BucketSettings("torch_ddp", "library", TINY, TINY)


def cases(replicas: int, ranks: int, syncs, chunks: int):
    """Every schedule with every sync; models, partitions and checkpointing take turns."""
    turns = cycle(product((mlp, gpt), CHECKPOINTING.values(), (uniform, skewed)))
    for build, sync in product(BUILDERS, syncs):
        try:
            schedule = build(ranks, chunks)
        except ValueError:
            continue  # not defined for so few ranks or chunks
        make, checkpointing, cut = next(turns)
        if sync.problems(schedule, "shm"):
            continue
        model = replace(make("float64"), layers=schedule.stages + 1)
        yield make_plan(
            schedule=schedule,
            model=model,
            partition=cut(model.layers, schedule.stages),
            checkpointing=checkpointing,
            batch_size=ROWS,
            replicas=replicas,
            sync=sync,
        )


@cache
def single_process(name: str, layers: int, chunks: int, replicas: int):
    model = replace({"mlp": mlp, "gpt": gpt}[name]("float64"), layers=layers)
    plan = make_plan(schedule=schedules.gpipe(1, chunks), model=model, batch_size=ROWS, replicas=replicas)
    return list(monolith.steps(plan, rank_code.STEPS))


def check(plan, found: list[rank_code.Left]) -> None:
    case = (plan.schedule.name, plan.replicas, plan.sync, plan.checkpointing.name, plan.model.name)
    pipelines = [found[first : first + plan.ranks] for first in range(0, len(found), plan.ranks)]
    bits = [{index: own for left in pipeline for index, own in left.bits.items()} for pipeline in pipelines]
    assert all(own == bits[0] for own in bits), case
    assert len({pipeline[plan.schedule.placement[0]].inputs for pipeline in pipelines}) == plan.replicas
    want = single_process(plan.model.name, plan.model.layers, plan.schedule.chunks, plan.replicas)
    got = {index: gradients for left in pipelines[0] for index, gradients in left.gradients.items()}
    for index, gradients in enumerate(want[-1].gradients):
        for mine, theirs in zip(got[index], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12, msg=lambda text: f"{case}: {text}")
    last = plan.schedule.placement[plan.schedule.stages - 1]
    losses = [sum(shares) for shares in zip(*(pipeline[last].losses for pipeline in pipelines), strict=True)]
    assert losses == pytest.approx([step.loss for step in want], abs=1e-12), case


def in_threads(plan, everyone=None) -> list[rank_code.Left]:
    everyone = everyone or thread_comms(plan.ranks, 10, plan.replicas)
    found, failures = {}, []

    def live(comms) -> None:
        try:
            found[comms.number] = rank_code.train_replica(plan, comms)
        except Exception as error:
            failures.append(error)
            comms.abort()

    threads = [threading.Thread(target=live, args=(comms,), daemon=True) for comms in everyone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "it hangs"
    if failures:
        raise failures[0]
    return [found[number] for number in range(plan.processes)]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize(("ranks", "replicas"), [(1, 3), (2, 2), (2, 3)])
def test_threads(ranks, replicas, sync):
    plans = list(cases(replicas, ranks, [SYNCS[sync]], 4))
    assert len(plans) > 5
    for plan in plans:
        check(plan, in_threads(plan))


@pytest.mark.parametrize(("ranks", "replicas"), [(1, 2), (2, 2), (2, 3)])
def test_processes(ranks, replicas, tmp_path):
    plans = list(cases(replicas, ranks, [*SYNCS.values(), TORCH], 3 if ranks == 1 else 4))
    results = launch.run_elastic(plans[0], tmp_path, 3, partial(rank_code.train_replicas, plans))
    assert {plan.sync.name for plan in plans} == {"naive", "flat", "ddp", "torch_ddp"}
    for number, plan in enumerate(plans):
        check(plan, [results[rank][number] for rank in range(plan.processes)])


class Deaf(ThreadComms):
    """A rank whose sums over the replicas do nothing."""

    def iall_reduce(self, tensor):
        return Summed(tensor, 1)


def test_a_sum_that_does_nothing_is_seen():
    plan = next(cases(2, 2, [SYNCS["flat"]], 4))
    everyone = thread_comms(2, 10, 2)
    for comms in everyone:
        comms.across = Deaf(comms.across._hub, comms.across.rank, 10)
    with pytest.raises(AssertionError):
        check(plan, in_threads(plan, everyone))
