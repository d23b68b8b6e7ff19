"""Statistics over launches, against values worked out by hand."""

from __future__ import annotations

import math
import os

import pandas as pd
import pytest

from microp.records import DISTURBANCES, disturbances, load_average
from microp.records.statistics import LAUNCH, interval, least_squares, over_launches, paired


def launches(schedule: str, times: list[float], p10: float = 1.0, p90: float = 1.0) -> pd.DataFrame:
    """A row a launch; `p10` and `p90` as multiples of its median."""
    columns = {"schedule": schedule, LAUNCH: range(len(times)), "step_ms.median": times}
    spread = {"step_ms.p10": [p10 * time for time in times], "step_ms.p90": [p90 * time for time in times]}
    return pd.DataFrame(columns | spread)


@pytest.mark.parametrize(
    "values", [[7.0], [1.0, 5.0], [1.0, 2.0, 3.0], [4.0, 1.0, 2.0, 9.0], [5.0, 1.0, 2.0, 3.0, 4.0]]
)
def test_of_few_launches_the_interval_is_the_range(values):
    """The smallest of n values is the median of more than 2.5 % of the samples up to n = 5: 181 of 3125."""
    assert interval(values) == (min(values), max(values))


def test_of_many_launches_the_interval_is_narrower_and_holds_the_median():
    low, high = interval([float(value) for value in range(1, 22)])
    assert 1 < low < 11 < high < 21


def test_the_order_of_the_launches_does_not_matter():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0]
    assert interval(values) == interval(values[::-1])


def test_a_point_is_the_median_over_its_launches():
    rows = pd.concat([launches("gpipe", [40.0, 44.0, 42.0]), launches("1f1b", [50.0])])
    points = over_launches(rows, ["schedule"], ["step_ms.median"]).set_index("schedule")
    assert points.loc["gpipe"].tolist() == [3, 42.0, 40.0, 44.0, False]
    assert points.loc["1f1b"].tolist() == [1, 50.0, 50.0, 50.0, False]


@pytest.mark.parametrize(("times", "wide"), [([95.1, 100.0, 105.0], False), ([94.9, 100.0, 105.0], True)])
def test_a_point_is_too_wide_beyond_a_tenth_of_its_value(times, wide):
    [point] = over_launches(launches("gpipe", times), ["schedule"], ["step_ms.median"]).to_dict("records")
    assert point["step_ms.median.wide"] == wide


@pytest.mark.parametrize(("p90", "wide"), [(1.09, False), (1.11, True)])
def test_a_point_is_too_wide_where_its_steps_scatter(p90, wide):
    """p10 is 0.9 of the median: together 0.19 and 0.21 of it."""
    rows = launches("gpipe", [100.0, 100.0], p10=0.9, p90=p90)
    [point] = over_launches(rows, ["schedule"], ["step_ms.median"]).to_dict("records")
    assert point["step_ms.median.wide"] == wide


def test_a_small_fraction_may_spread_by_the_floor():
    rows = pd.DataFrame({"schedule": "gpipe", LAUNCH: [0, 1], "bubble": [0.05, 0.065]})
    [with_floor] = over_launches(rows, ["schedule"], ["bubble"], floor=0.02).to_dict("records")
    [without] = over_launches(rows, ["schedule"], ["bubble"]).to_dict("records")
    assert (with_floor["bubble.wide"], without["bubble.wide"]) == (False, True)


def test_a_value_that_no_launch_has_is_left_empty():
    rows = launches("gpipe", [1.0]).assign(bubble=float("nan"))
    [point] = over_launches(rows, ["schedule"], ["bubble"]).to_dict("records")
    assert math.isnan(point["bubble"])
    assert point["bubble.wide"] is False


def test_configurations_are_compared_launch_by_launch():
    """Both are twice as slow in launch 1, of which the ratio knows nothing; launch 2 has no partner."""
    compared = paired(launches("1f1b", [60.0, 120.0, 66.0]), launches("gpipe", [50.0, 100.0]), [], "step_ms.median")
    assert compared[LAUNCH].tolist() == [0, 1]
    assert compared["ratio"].tolist() == [1.2, 1.2]


def test_a_baseline_with_two_rows_for_one_launch_is_refused():
    twice = pd.concat([launches("gpipe", [50.0]), launches("naive", [90.0])])
    with pytest.raises(ValueError, match="name what else differs"):
        paired(launches("1f1b", [60.0]), twice, [], "step_ms.median")


def test_least_squares_finds_the_line():
    assert least_squares([1, 2, 4, 8], [7 + 3 * x for x in (1, 2, 4, 8)]) == pytest.approx((7, 3))


# --- a run whose timing was disturbed says why; others say nothing --------------------------------


CALM = {
    "step_ms": {"median": 100.0, "p10": 95.0, "p90": 105.0, "n": 20},
    "status": "finished",
    "ranks": 2,
    "replicas": 1,
    "overruns": 0,
}


def texts(summary, env):
    found = disturbances({**CALM, **summary}, env)
    assert all(each.kind in DISTURBANCES for each in found)
    return [each.text for each in found]


@pytest.mark.parametrize("env", [{}, {"cores": 2}, {"cores": 2, "load": {"start": 2.2, "end": 2.4}}], ids=str)
def test_a_calm_run_has_no_reason(env):
    assert texts({}, env) == []
    assert texts({"step_ms": None}, env) == []  # it failed before its first measured step


def test_a_shared_gpu():
    assert texts({"shared_gpu": True}, {}) == ["shared GPU"]
    assert texts({"shared_gpu": False}, {}) == []


def test_steps_that_spread_widely():
    assert texts({"step_ms": {"median": 928.8, "p10": 446.8, "p90": 4635.0}}, {}) == ["spread 451 %"]
    assert texts({"step_ms": {"median": 100.0, "p10": 90.0, "p90": 110.0}}, {}) == []  # a fifth is not too wide


def test_a_load_above_the_cores_less_the_run_s_own_ranks():
    """Four ranks on two cores are a load of four by themselves; so are those of the run before."""
    busy = {"cores": 2, "load": {"start": 1.0, "end": 3.1}}
    assert texts({}, busy) == ["load 3.1"]
    assert texts({}, {"cores": 2, "load": {"start": 9.14, "end": None}}) == ["load 9.1"]
    assert texts({"ranks": 4}, busy) == []
    assert texts({"ranks": 2, "replicas": 2}, busy) == []
    assert texts({"ranks": 4}, {**busy, "load": {"start": 5.0, "end": 4.0}}) == ["load 5.0"]
    assert texts({}, {**busy, "cores": 8}) == []


def test_overruns_and_several_reasons():
    assert texts({"overruns": 1}, {}) == ["1 overrun"]
    wide = {"step_ms": {"median": 10.0, "p10": 9.0, "p90": 14.0}, "overruns": 12}
    assert texts(wide, {"cores": 1, "load": {"start": 4.0}}) == ["spread 50 %", "load 4.0", "12 overruns"]


def test_steps_that_outlast_their_nominal_times_say_how_much_of_them_is_real_work():
    assert texts({"nominal": {"step": 1.0431, "work": 0.314}}, {}) == ["1.043 x nominal, 31 % real work"]
    assert texts({"nominal": {"step": 1.019, "work": 0.9}}, {}) == []
    assert texts({"nominal": None}, {}) == []  # a real device
    assert "model.dim=64" in DISTURBANCES["nominal"]


def test_points_that_ran_at_the_same_time():
    """On an emulated device actions last their nominal times, and those that did not are counted."""
    assert texts({"device": "cpu"}, {"parallel": True}) == ["parallel"]
    assert texts({"device": "emulated"}, {"parallel": True}) == []


def test_a_system_without_a_load_average_has_none(monkeypatch):
    def absent():
        raise OSError

    assert load_average() == pytest.approx(os.getloadavg()[0], abs=5)
    monkeypatch.setattr(os, "getloadavg", absent)
    assert load_average() is None


@pytest.mark.parametrize("status", ["failed", "interrupted", "diverged", "killed"])
def test_only_the_times_of_a_finished_run_can_be_disturbed(status):
    assert texts({"overruns": 1, "status": status}, {"cores": 2, "load": {"end": 9.0}}) == []
