"""A profile keeps to its time: fewer steps, then fewer rounds and cases, and never none of an op."""

from collections import Counter

import numpy as np
import pytest
import torch
from conftest import gpt, mlp, small_job
from gpu import ACTION_MS, Gpu, World
from threads import in_threads

from microp.device import Cuda
from microp.schedule.builders import gpipe
from microp.worker import record_rows
from microp.worker.profiling import FEWEST, MOST, WARMUP, Budget, _StageTimer

SECONDS, CASES, NEEDED, ROUNDS = 45.0, 41, 6, 3


def run(step: float):
    """Run a budget on a machine whose steps take `step` seconds; return how often each case ran, steps and time."""
    budget, now = Budget(CASES, NEEDED, ROUNDS, SECONDS), 0.0
    ran, counted = Counter(), []
    for _, case in budget.turns():
        before = 0.05 + WARMUP * step
        now += before
        counted.append(budget.steps(now, before, step))
        now += counted[-1] * step
        ran[case] += 1
    return ran, counted, now


def test_a_fast_model_is_measured_with_all_cases_in_all_rounds():
    ran, counted, took = run(0.02)
    assert ran == dict.fromkeys(range(CASES), ROUNDS)
    assert FEWEST < min(counted) <= max(counted) <= MOST
    assert took == pytest.approx(SECONDS, rel=0.1)
    _, counted, took = run(0.0001)
    assert set(counted) == {MOST}
    assert took < SECONDS / 2


@pytest.mark.parametrize("step", [0.1, 0.4, 1.6])
def test_a_slow_model_is_measured_with_fewer_cases(step):
    ran, counted, took = run(step)
    assert NEEDED <= len(ran) < CASES
    assert set(ran) == set(range(len(ran)))  # the last ones are left out
    assert len(set(ran.values())) == 1  # every round has all of them
    assert min(counted) >= FEWEST
    assert took < 1.4 * SECONDS
    ran, counted, _ = run(60.0)  # the needed ones are run however slow the model is
    assert (ran, counted) == (dict.fromkeys(range(NEEDED), 1), [FEWEST] * NEEDED)


@pytest.mark.parametrize("model", [mlp(), gpt(dropout=0.0)], ids=["mlp", "gpt"])
def test_every_rank_times_each_op(tmp_path, model):
    job = small_job(schedule=gpipe(2, 1), model=model)
    kept = in_threads(2, lambda comms: record_rows([1, 2, 9], 0.6, job, comms, 0, tmp_path))
    for rank, rows in enumerate(kept):
        assert rows == [1, 2, 9][: len(rows)]
        with np.load(tmp_path / f"rows.rank{rank}.npz") as file:
            assert file["rows"].tolist() == rows
            for op in ("forward", "full", "backward", "weight"):
                assert file[op].shape == (len(rows),)
                assert (file[op] > 0).all()
    kept = in_threads(2, lambda comms: record_rows([3, 4, 5], 0.0, job, comms, 0, tmp_path))
    assert kept == [[3], [3]]  # numbers that take too long are left out


def test_a_gpu_s_times_are_read_after_its_last_action():
    """Of every measurement, not only of the first: its stage is timed many times."""
    gpu = Gpu(World())
    device = Cuda(0, 1, gpu)
    device.torch_device = torch.device("cpu")
    timer = _StageTimer(small_job(schedule=gpipe(2, 1)), 0, device, divided=True)
    with gpu:
        taken = [timer._times(2) for _ in range(2)]
    assert all(ms >= ACTION_MS for times in taken for ms in times.values())
