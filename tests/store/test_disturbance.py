"""A run whose timing was disturbed says why; others say nothing."""

from __future__ import annotations

import os

import pytest

from microp.store import DISTURBANCES, disturbances, load_average

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

    assert load_average() == pytest.approx(os.getloadavg()[0], abs=1)
    monkeypatch.setattr(os, "getloadavg", absent)
    assert load_average() is None


@pytest.mark.parametrize("status", ["failed", "interrupted", "diverged", "killed"])
def test_only_the_times_of_a_finished_run_can_be_disturbed(status):
    assert texts({"overruns": 1, "status": status}, {"cores": 2, "load": {"end": 9.0}}) == []
