"""Bars that lie side by side differ in nothing but what their names say."""

from __future__ import annotations

from analysis import prediction, rank_time
from microp.store import LAUNCH
from tests.made_sweeps import made
from tests.made_up import Made


def drawn(rows: list[dict]) -> tuple[dict[str, list[str]], rank_time.Exhibit]:
    """The names of the bars in each panel, by the panel's title on one line."""
    for number, row in enumerate(rows):
        row.update({"question": str(number), LAUNCH: 0})
    [exhibit] = rank_time.exhibits(Made(rows))
    panels = {
        axis.get_title(loc="left").replace("\n", " "): [label.get_text() for label in axis.get_yticklabels()]
        for axis in exhibit.figure.axes
    }
    return {title: [name.rpartition(",")[0] for name in names] for title, names in panels.items()}, exhibit


def test_latencies_have_a_panel_each_although_they_follow_from_the_schedule(tmp_path):
    rows = [made(tmp_path, name, 8, 4, latency=latency) for name, latency in (("gpipe", 0), ("1f1b", 2))]
    panels, exhibit = drawn(rows)
    assert panels == {
        "emulated, mlp, K = 4, M = 8, device.latency_ms=0": ["gpipe"],
        "emulated, mlp, K = 4, M = 8, device.latency_ms=2": ["1f1b"],
    }
    assert exhibit.table.groupby("device.latency_ms")["schedule"].unique().map(list).to_dict() == {
        0: ["gpipe"],
        2: ["1f1b"],
    }


def test_every_key_in_which_runs_differ_is_named(tmp_path):
    path = "/home/somebody/a/folder/{}/of/texts/that/is/deep/and/has/a/name/that/is/long.txt"
    others = {"config.engine.name": ["microp", "torch"], "config.learning_rate": [0.1, 0.2]}
    others |= {"config.model.dim": [64, 128], "config.data.path": [path.format(1), path.format(2)]}
    usual = {key: values[0] for key, values in others.items()}
    rows = [made(tmp_path, "gpipe", 8, **usual), made(tmp_path, "1f1b", 8, **usual)]
    rows += [made(tmp_path, "gpipe", 8, **{**usual, key: values[1]}) for key, values in others.items()]
    panels, exhibit = drawn(rows)
    assert sorted(panels.values()) == [["gpipe"]] * 4 + [["gpipe", "1f1b"]]
    for told in ("engine=torch", "data.path=…2/of", "learning_rate=0.2", "model.dim=128"):
        assert sum(told in title.replace(" ", "") for title in panels) == 1
    assert {"engine.name", "learning_rate", "model.dim", "data.path"} <= set(exhibit.table)


def test_a_schedules_own_keys_are_in_the_names_of_its_bars(tmp_path):
    rows = [made(tmp_path, "mine", 8, **{"config.schedule.group": group}) for group in (2, 4)]
    panels, _ = drawn([*rows, made(tmp_path, "gpipe", 8)])
    assert panels == {"emulated, mlp, K = 2, M = 8": ["gpipe", "mine, group=2", "mine, group=4"]}


def test_what_has_no_room_is_named(tmp_path):
    panels, exhibit = drawn([made(tmp_path, "gpipe", chunks) for chunks in range(1, 10)])
    assert len(panels) == rank_time.PANELS
    assert "Not drawn, but in the table: 3 further configurations (emulated, mlp, K = 2, M = " in exhibit.caption
    assert exhibit.table["chunks"].nunique() == 9


def test_the_table_of_replays_names_what_runs_differ_in(tmp_path):
    rows = [made(tmp_path, "gpipe", 8, latency=latency) for latency in (0, 2)]
    [exhibit] = prediction.exhibits(Made([{**row, "question": str(n)} for n, row in enumerate(rows)]))
    assert sorted(exhibit.table["device.latency_ms"]) == [0, 2]
