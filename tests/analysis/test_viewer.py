"""The data of the timelines in the report."""

import json
from pathlib import Path

import pandas as pd
from drawn import equal
from made_up import run

from analysis import viewer
from microp.results import Store
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_v


def timelines(*rows):
    """The viewer's data of made-up runs, and how many were left out."""
    return viewer.timelines(pd.DataFrame(rows))


def test_a_timeline_has_every_action_with_its_wait_and_its_parents(tmp_path):
    data, _ = timelines(run(tmp_path, one_f_one_b(2, 2), equal(2, 5, 10)))
    [shown] = data["runs"]
    assert [panel["name"] for panel in shown["panels"]] == ["replayed", "measured"]
    measured = shown["panels"][-1]
    assert measured["length"] == 45_000
    assert shown["facts"] == ["replayed 45 ms, bubble 0.333", "measured 45 ms (+0.0 %), bubble 0.333"]
    actions = [shown["actions"][at : at + 4] for at in range(0, 32, 4)]
    times = [measured["times"][at : at + 3] for at in range(0, 24, 3)]
    assert list(zip(actions[4:], times[4:], strict=True)) == [  # rank, op, stage, microbatch; start, length, wait
        ([1, 0, 1, 0], [5_000, 5_000, 5_000]),
        ([1, 1, 1, 0], [10_000, 10_000, 0]),
        ([1, 0, 1, 1], [20_000, 5_000, 0]),
        ([1, 1, 1, 1], [25_000, 10_000, 0]),
    ]
    parents = {tuple(actions[at]): [tuple(actions[each]) for each in own] for at, own in enumerate(shown["parents"])}
    assert parents[0, 0, 0, 1] == []
    assert parents[1, 0, 1, 1] == [(0, 0, 0, 1)]
    assert parents[0, 1, 0, 1] == [(0, 0, 0, 1), (1, 1, 1, 1)]


def test_each_stage_of_a_rank_has_its_shade_and_the_newest_run_of_several_ranks_is_first(tmp_path):
    runs = [run(tmp_path, schedule, equal(4, 5, 10)) for schedule in (gpipe(4, 2), interleaved(2, 2), zb_v(2, 2))]
    shades = {each["name"].split(",")[0]: each["shades"] for each in timelines(*runs)[0]["runs"]}
    assert shades == {"gpipe": [0, 0, 0, 0], "interleaved": [0, 0, 1, 1], "zb_v": [0, 0, 1, 1]}
    made = ((2, 5), (4, 7), (1, 9))  # ranks, and when it was started
    runs = [run(tmp_path, gpipe(ranks, 2), equal(ranks, 5, 10), started=began) for ranks, began in made]
    data, _ = timelines(*runs[:2], runs[2] | {"disturbed": True})
    assert data["runs"][data["first"]]["ranks"] == 4
    told = {each["ranks"]: " ".join(each["facts"]) for each in data["runs"]}
    assert {ranks: "disturbed: median step" in facts for ranks, facts in told.items()} == {1: True, 2: False, 4: False}


def test_sums_over_the_replicas_are_replayed_and_measured(tmp_path):
    row = run(tmp_path, gpipe(1, 1), equal(1, 5, 10), replicas=2)
    sums = {"rank": 0, "stage": 0, "start_ns": 16_000_000, "end_ns": 20_000_000}
    (Path(row["folder"]) / "reductions.rank0.jsonl").write_text(json.dumps(sums))
    [shown] = timelines(row)[0]["runs"]
    assert "2 replicas" in shown["name"]
    assert {panel["name"]: panel["sums"] for panel in shown["panels"]} == {
        "replayed": [0, 0, 15_000, 5_000],  # from the last gradient on
        "measured": [0, 0, 16_000, 4_000],
    }
    assert [panel["length"] for panel in shown["panels"]] == [20_000, 20_000]
    assert shown["facts"][1] == "measured 15 ms (+0.0 %), bubble 0.000; 20 with the sums"


def test_a_page_that_is_full_leaves_the_longest_out(outputs, monkeypatch):
    monkeypatch.setattr(viewer, "MOST_SPANS", 30)  # a timeline of M = 2 has 8 actions, one of M = 4 has 16
    data, left_out = viewer.timelines(Store(outputs).runs())
    assert len(data["runs"]) == 2
    assert left_out == 2
