"""More ranks than cores take turns, and that costs time."""

from __future__ import annotations

import pytest
from profiled import profile, traced

from microp.job import Workload
from microp.planner import Case, crowded_factors, forecast, stage_costs
from microp.planner.forecast import speed_of
from microp.schedule.builders import gpipe, one_f_one_b
from microp.settings import NEVER, MlpSettings
from microp.simulator import simulate_on_cores

MODEL = MlpSettings("mlp", 8, 64, "float32")
SIZES = (2, 2, 2, 2)


def workload(schedule, rows: int) -> Workload:
    return Workload(schedule, SIZES, (rows,) * schedule.chunks, NEVER)


def run(schedule, rows: int, factor: float) -> Case:
    """A case of four ranks on two cores that lose a part of their speed."""
    known = profile(MODEL, crowded=(factor, factor))
    costs = stage_costs(known, MODEL.kinds, workload(schedule, rows), "shm")
    return traced(simulate_on_cores(schedule, costs, speed_of(known, rows)), SIZES, schedule, rows)


def test_the_factor_is_found_at_each_number_of_rows():
    known = ((8, 8, 0.6), (10, 36, 0.8))  # microbatches, rows, factor
    cases = [run(build(4, chunks), rows, factor) for build in (gpipe, one_f_one_b) for chunks, rows, factor in known]
    found = crowded_factors(profile(MODEL), MODEL.kinds, cases, "shm")
    assert found == pytest.approx((0.6, 0.8), abs=2e-3)  # no case has 64 rows: the nearest number counts
    assert profile(MODEL, crowded=found).crowded_at(22) == pytest.approx(0.65, abs=2e-3)


def test_without_such_cases_nothing_is_lost():
    assert crowded_factors(profile(MODEL), MODEL.kinds, [], "shm") == (1.0, 1.0)


def test_only_ranks_that_share_cores_are_slower():
    fast, slow = profile(MODEL), profile(MODEL, crowded=(0.5, 0.5))
    assert [speed_of(slow, 8)(ranks) for ranks in (2, 3, 4)] == [1.0, 0.5 * 2 / 3, 0.25]
    two, four = (Workload(one_f_one_b(ranks, 8), (8 // ranks,) * ranks, (8,) * 8, NEVER) for ranks in (2, 4))
    steps = {
        ranks: [forecast(each, MODEL.kinds, given, "shm", batch=0).step_ms for each in (fast, slow)]
        for ranks, given in ((2, two), (4, four))
    }
    assert steps[2][0] == steps[2][1]
    assert steps[4][1] > 1.5 * steps[4][0]
