"""Ranks that share cores: no work is lost, and a core each is the plain simulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from costs_helper import equal
from random_schedules import random_costs, random_schedule

from microp.schedule.builders import gpipe, one_f_one_b
from microp.simulator import simulate, simulate_on_cores
from microp.simulator.link_model import Asynchronous
from microp.trace import makespan


def test_a_core_each_is_the_plain_simulation():
    random = Random(5)
    for _ in range(60):
        schedule = random_schedule(random)
        overhead = tuple(random.randint(0, 3) for _ in range(schedule.stages))
        costs = replace(random_costs(random, schedule), transfer=Asynchronous(), overhead=overhead)
        plain, shared = simulate(schedule, costs), simulate_on_cores(schedule, costs, lambda _: 1.0)
        assert np.allclose(plain.start.astype(float), shared.start)
        assert np.allclose(plain.end.astype(float), shared.end)
        assert np.allclose(plain.wait_start.astype(float), shared.wait_start)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_no_work_is_lost(cores):
    schedule = one_f_one_b(4, 6)
    costs = equal(4, 1, 2)
    spans = simulate_on_cores(schedule, costs, lambda computing: min(1.0, cores / computing))
    work, time = 4 * 6 * 3, makespan(spans)
    assert work / cores <= time + 1e-9
    if cores == 1:
        assert time == pytest.approx(work)  # something always runs
    assert time < makespan(simulate(schedule, costs)) * 4 / cores + 1e-9


def test_a_rank_alone_can_be_faster():
    speed = lambda computing: 2.0 if computing == 1 else 1.0  # noqa: E731
    spans = simulate_on_cores(gpipe(2, 2), equal(2, 2, 2), speed)
    assert makespan(spans) == pytest.approx(1 + 2 + 1 + 1 + 2 + 1)  # F0 alone, F1 with F0, F1 alone, and back


def test_the_engine_s_own_time_is_no_compute():
    schedule = gpipe(2, 3)
    costs = replace(equal(2, 4, 8, latency=1), overhead=(1, 2))
    spans = simulate(schedule, costs)
    rank0 = [span for span in spans if span.rank == 0]
    assert [span.wait_start - before.end for before, span in pairwise(rank0)] == [1] * 5
    assert {span.end - span.start for span in spans} == {4, 8}
    assert (
        makespan(spans) == makespan(simulate(schedule, equal(2, 4, 8, latency=1))) + 5 * 2
    )  # rank 1 is busy from F0 to B2
