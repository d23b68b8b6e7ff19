"""What a sweep has planned is found again by its overrides, also by other processes, also after a kill."""

from __future__ import annotations

import json

from microp.store import SweepPlan, claim_folder

HEAD = {"schema_version": 2, "name": "config", "again": False}
POINTS = [
    {"run_id": "gpipe-m2", "overrides": ["chunks=2"], "config": {"chunks": 2}},
    {"overrides": ["chunks=3"], "left_out": "skip=true"},
]
MORE = {"run_id": "gpipe-m4", "overrides": ["chunks=4"], "config": {"chunks": 4}}


def listed(plan: SweepPlan) -> list[str]:
    points = json.loads((plan.folder / "plan.json").read_text())["points"]
    assert all(point.keys() == {"run_id", "overrides"} for point in points)
    return [point["run_id"] for point in points]


def test_a_point_is_found_by_its_overrides(tmp_path):
    plan = SweepPlan(tmp_path)
    assert plan.find(["chunks=2"]) is None  # there is no plan yet
    plan.write(HEAD, POINTS)
    other = SweepPlan(tmp_path)
    for each in (plan, other):
        assert each.find(["chunks=2"]) == POINTS[0]
        assert each.find(["chunks=3"]) == POINTS[1]
        assert each.find(["chunks=4"]) is None
    assert listed(plan) == ["gpipe-m2"]  # the other is not run
    plan.add(MORE)
    assert other.find(["chunks=4"]) == MORE  # another process sees it
    assert other.points() == [*POINTS, MORE]
    assert listed(other) == ["gpipe-m2", "gpipe-m4"]
    assert other.head["name"] == "config"


def test_a_line_that_a_kill_cut_short_costs_only_that_line(tmp_path):
    plan = SweepPlan(tmp_path)
    plan.write(HEAD, POINTS)
    with (tmp_path / "points.jsonl").open("a") as file:
        file.write('{"run_id": "gpipe-m3", "overri')
    assert plan.points() == POINTS
    plan.add(MORE)
    assert plan.points() == [*POINTS, MORE]
    assert plan.find(["chunks=4"]) == MORE


def test_a_plan_that_is_stopped_says_why(tmp_path):
    plan = SweepPlan(tmp_path)
    plan.write(HEAD, POINTS)
    assert plan.stopped is None
    plan.stop("gpipe-m2 failed")
    assert SweepPlan(tmp_path).stopped == "gpipe-m2 failed"


def test_two_sweeps_of_one_second_have_a_folder_each(tmp_path):
    wanted = tmp_path / "sweeps" / "2026-01-01_00-00-00_config"
    folders = [claim_folder(wanted) for _ in range(3)]
    assert [folder.name for folder in folders] == [wanted.name, f"{wanted.name}_2", f"{wanted.name}_3"]
    assert sorted(folders) == folders  # the report reads them in the order in which they were started
