"""Gradients and losses equal the monolith's bit for bit, on real processes.

schedules x ranks x chunks x partitions x checkpointing x models, one launch for each
number of ranks; chunks go below the ranks, are no multiple of them, and do not divide the
batch of 9 rows.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product

import pytest
import ranks as rank_code
import torch
from conftest import CHECKPOINTING, gpt, make_plan, mlp

from microp import launch, monolith
from microp.partition import skewed, uniform
from microp.schedules import Drain, gpipe, naive, one_f_one_b

CHUNKS = (1, 2, 3, 5, 8)
MODELS = {"mlp": mlp, "gpt": gpt}


@cache
def expected(model: str, chunks: int):
    plan = make_plan(schedule=gpipe(1, chunks), model=MODELS[model]())
    done = list(monolith.steps(plan, rank_code.STEPS))
    return [step.loss for step in done], [rank_code.digest(layer) for layer in done[-1].gradients]


def cases(ranks: int):
    grid = product((naive, gpipe, one_f_one_b), CHUNKS, (uniform, skewed), CHECKPOINTING.values(), MODELS)
    for build, chunks, cut, checkpointing, name in grid:
        model = MODELS[name]()
        yield make_plan(
            schedule=build(ranks, chunks),
            partition=cut(model.layers, ranks),
            checkpointing=checkpointing,
            model=model,
        )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_bit_for_bit(ranks, tmp_path):
    plans = list(cases(ranks))
    entry = partial(rank_code.train_all, plans)
    results = launch.run_elastic(plans[0], tmp_path, 3, entry)
    for number, plan in enumerate(plans):
        losses, layers = expected(plan.model.name, plan.schedule.chunks)
        case = (plan.schedule.name, plan.schedule.chunks, plan.partition, plan.checkpointing.name, plan.model.name)
        got = {}
        for rank in range(ranks):
            got |= results[rank][number][1]
        assert results[ranks - 1][number][0] == losses, case
        assert [got[index] for index in range(plan.model.layers)] == layers, case


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_last_in_first_out(model, checkpointing, tmp_path):
    """Another order of summation: float64, to 1e-12."""
    subject = MODELS[model]("float64")
    plan = make_plan(
        schedule=gpipe(3, 5, Drain.lifo),
        partition=uniform(subject.layers, 3),
        model=subject,
        checkpointing=CHECKPOINTING[checkpointing],
    )
    ranks = launch.run_elastic(plan, tmp_path, 3, rank_code.train_tensors)
    *_, want = monolith.steps(plan, rank_code.STEPS)
    got = {index: grads for _, layers in ranks.values() for index, grads in layers.items()}
    for index, gradients in enumerate(want.gradients):
        for mine, theirs in zip(got[index], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert ranks[2][0][-1] == pytest.approx(want.loss, abs=1e-12)


def test_the_gradient_is_the_batch_s():
    """Weighting each microbatch by its rows gives the gradient of the whole batch's mean."""
    [whole], [split] = (
        list(monolith.steps(make_plan(model=mlp("float64"), schedule=gpipe(1, chunks)), 1)) for chunks in (1, 4)
    )
    for mine, theirs in zip(split.gradients, whole.gradients, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_wrong_gradient_is_seen():
    """The comparison can fail: one changed bit changes a digest."""
    [step] = monolith.steps(make_plan(), 1)
    weight, bias = step.gradients[0]
    changed = weight.clone()
    changed.view(-1).view(torch.int32)[3] ^= 1
    assert rank_code.digest([changed, bias]) != rank_code.digest([weight, bias])
