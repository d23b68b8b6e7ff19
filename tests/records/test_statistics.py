"""Statistics over launches, against values worked out by hand."""

import math

import pandas as pd
import pytest

from microp.records import DISTURBANCES, LAUNCH, disturbances, least_squares, over_launches, paired
from microp.records.statistics import interval


def launches(schedule: str, times: list[float], p10: float = 1.0, p90: float = 1.0) -> pd.DataFrame:
    """A row a launch; `p10` and `p90` as multiples of its median."""
    columns = {"schedule": schedule, LAUNCH: range(len(times)), "step_ms.median": times}
    spread = {"step_ms.p10": [p10 * time for time in times], "step_ms.p90": [p90 * time for time in times]}
    return pd.DataFrame(columns | spread)


def test_of_few_launches_the_interval_is_the_range_and_of_many_it_is_narrower():
    """The smallest of n values is the median of more than 2.5 % of the samples up to n = 5: 181 of 3125."""
    for few in ([7.0], [1.0, 5.0], [5.0, 1.0, 2.0, 3.0, 4.0]):
        assert interval(few) == (min(few), max(few))
    values = [float(value) for value in range(1, 22)]
    low, high = interval(values)
    assert 1 < low < 11 < high < 21
    assert interval(values[::2] + values[1::2]) == (low, high)


def test_a_point_is_the_median_over_its_launches():
    rows = pd.concat([launches("gpipe", [40.0, 44.0, 42.0]), launches("1f1b", [50.0])])
    points = over_launches(rows, ["schedule"], ["step_ms.median"]).set_index("schedule")
    assert points.loc["gpipe"].tolist() == [42.0, 40.0, 44.0, False, 3]
    assert points.loc["1f1b"].tolist() == [50.0, 50.0, 50.0, False, 1]


@pytest.mark.parametrize(
    ("times", "spread", "wide"),
    [
        ([95.1, 100.0, 105.0], (1, 1), False),  # a tenth of the value
        ([94.9, 100.0, 105.0], (1, 1), True),
        ([100.0, 100.0], (0.9, 1.09), False),  # the steps of a launch spread over a fifth
        ([100.0, 100.0], (0.9, 1.11), True),
    ],
)
def test_a_point_is_too_wide_if_its_launches_or_their_steps_scatter(times, spread, wide):
    [point] = over_launches(launches("gpipe", times, *spread), ["schedule"], ["step_ms.median"]).to_dict("records")
    assert point["step_ms.median.wide"] == wide


def test_memory_is_exact_however_the_times_are_disturbed():
    rows = launches("gpipe", [50.0, 90.0], 0.5, 2).assign(
        disturbed=True, kept_mib=[1.0, 9.0], activation_kib=[1.0, 9.0]
    )
    [point] = over_launches(rows, ["schedule"], ["kept_mib", "activation_kib", "step_ms.median"]).to_dict("records")
    assert [point[f"{name}.wide"] for name in ("kept_mib", "activation_kib", "step_ms.median")] == [False, False, True]


def test_a_small_fraction_may_spread_by_the_floor_and_a_value_that_no_launch_has_is_left_empty():
    rows = pd.DataFrame({"schedule": "gpipe", LAUNCH: [0, 1], "bubble": [0.05, 0.065]})
    [with_floor] = over_launches(rows, ["schedule"], ["bubble"], floor=0.02).to_dict("records")
    [without] = over_launches(rows, ["schedule"], ["bubble"]).to_dict("records")
    assert (with_floor["bubble.wide"], without["bubble.wide"]) == (False, True)
    rows = launches("gpipe", [1.0]).assign(bubble=float("nan"))
    [point] = over_launches(rows, ["schedule"], ["bubble"]).to_dict("records")
    assert math.isnan(point["bubble"])
    assert point["bubble.wide"] is False


def test_configurations_are_compared_launch_by_launch():
    """Both are twice as slow in launch 1, of which the ratio knows nothing; launch 2 has no partner."""
    compared = paired(launches("1f1b", [60.0, 120.0, 66.0]), launches("gpipe", [50.0, 100.0]), [], "step_ms.median")
    assert compared[LAUNCH].tolist() == [0, 1]
    assert compared["ratio"].tolist() == [1.2, 1.2]
    twice = pd.concat([launches("gpipe", [50.0]), launches("naive", [90.0])])
    with pytest.raises(ValueError, match="name what else differs"):
        paired(launches("1f1b", [60.0]), twice, [], "step_ms.median")
    assert least_squares([1, 2, 4, 8], [7 + 3 * x for x in (1, 2, 4, 8)]) == pytest.approx((7, 3))


CALM = {"step_ms": {"median": 100.0, "p10": 95.0, "p90": 105.0, "n": 20}, "status": "finished", "ranks": 2}
CALM |= {"replicas": 1, "overruns": 0}
BUSY = {"cores": 2, "load": {"start": 1.0, "end": 3.1}}
WIDE = {"step_ms": {"median": 10.0, "p10": 9.0, "p90": 14.0}, "overruns": 12}


@pytest.mark.parametrize(
    ("summary", "env", "reasons"),
    [
        ({}, {}, []),
        ({}, {"cores": 2, "load": {"start": 2.2, "end": 2.4}}, []),
        ({"step_ms": None}, {}, []),  # it failed before its first measured step
        ({"shared_gpu": True}, {}, ["shared GPU"]),
        ({"step_ms": {"median": 928.8, "p10": 446.8, "p90": 4635.0}}, {}, ["spread 451 %"]),
        ({"step_ms": {"median": 100.0, "p10": 90.0, "p90": 110.0}}, {}, []),  # a fifth is not too wide
        ({}, BUSY, ["load 3.1"]),
        ({"ranks": 2, "replicas": 2}, BUSY, []),  # four ranks are a load of four; so are those of the run before
        ({"ranks": 4}, {**BUSY, "load": {"start": 5.04, "end": None}}, ["load 5.0"]),
        ({}, {**BUSY, "cores": 8}, []),
        ({"queued": 0.09}, BUSY, []),  # what the system counts goes before the load
        ({"queued": 0.19}, {}, ["queued 19 %"]),
        ({"queued": 0.19, "nominal": {"step": 1.019, "work": 0.9}}, {}, []),
        ({"overruns": 1}, {}, ["1 overrun"]),
        ({"overruns": 6, "actions": 640}, {}, []),  # at most one in a hundred
        ({"overruns": 7, "actions": 640}, {}, ["7 overruns"]),
        (WIDE, {"cores": 1, "load": {"start": 4.0}}, ["spread 50 %", "load 4.0", "12 overruns"]),
        ({"nominal": {"step": 1.019, "work": 0.9}}, BUSY, []),  # the load did nothing
        ({"nominal": {"step": 1.03, "work": 0.1}}, BUSY, ["1.030 x nominal, 10 % real work", "load 3.1"]),
        ({"device": "cpu"}, {"parallel": True}, ["parallel"]),
        ({"device": "emulated"}, {"parallel": True}, []),  # of which the actions that took longer are counted
        ({"overruns": 1, "status": "failed"}, {"cores": 2, "load": {"end": 9.0}}, ["load 9.0", "1 overrun"]),
    ],
)
def test_a_run_whose_timing_was_disturbed_says_why(summary, env, reasons):
    found = disturbances({**CALM, **summary}, env)
    assert [reason.text for reason in found] == reasons
    assert all(reason.kind in DISTURBANCES for reason in found)
