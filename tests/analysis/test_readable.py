"""No text or legend of any figure is cut, lies on another or is too small, with one run, a few, or whole sweeps."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from analysis import looks, rank_time, sweep
from microp.records import LAUNCH
from tests.boxes import unreadable
from tests.made_cases import CASES
from tests.made_sweeps import made, schedule_runs
from tests.made_up import Made


@pytest.mark.parametrize("experiment", CASES)
def test_every_figure_can_be_read(experiment, tmp_path, whole):
    """Of whole sweeps and of a single run of each kind; with `--whole` also of a few runs."""
    case = CASES[experiment]
    folders = [tmp_path / name for name in ("few", "whole")]
    for folder in folders:
        folder.mkdir()
    few = list(case.few(folders[0]))
    kinds = pd.DataFrame(few).groupby(case.keys[0], dropna=False).head(1).index
    drawn = [case.draw(Made(list(case.whole(folders[1])))), *(case.draw(Made([few[index]])) for index in kinds)]
    assert drawn[0]
    for exhibits in [*drawn, case.draw(Made(few))] if whole else drawn:
        assert unreadable(exhibits) == []


LONG = "a_schedule_whose_name_is_far_longer_than_a_panel_of_a_figure"


def swept(folder, values: dict[str, list], chunks: tuple[int, ...] = (4, 8)) -> Made:
    """The runs of a user's own sweep over M and these keys of the configuration."""
    rows = [
        made(folder, "gpipe", number, **dict(zip(values, point, strict=True)), **{LAUNCH: 0})
        for number in chunks
        for point in product(*values.values())
    ]
    return Made(rows)


SWEPT = {
    "long values": {"config.data.path": [f"/home/somebody/a/folder/{n}/of/texts/that/is/deep.txt" for n in range(3)]},
    "long names": {"config.schedule.name": [LONG, f"another_{LONG}", "gpipe"]},
    "a column each": {"config.schedule.name": ["gpipe", "1f1b"], "config.model.dim": [64, 128, 1024]},
    "many lines": {"config.schedule.name": [f"mine_{n}" for n in range(3)], "config.seed": list(range(6))},
    "a dollar": {"config.data.path": ["$a_1$", "b$", "_underlined"]},
}


@pytest.mark.parametrize("name", SWEPT)
def test_a_users_own_sweep_can_be_read(name, tmp_path):
    chunks = {"a column each": (4, 8), "long names": tuple(range(1, 17))}.get(name, (4,))
    runs = swept(tmp_path, SWEPT[name], chunks).runs()
    assert unreadable([sweep.exhibit(runs, "sweep", "Sweep")]) == []


def test_of_very_many_lines_the_first_are_drawn(tmp_path):
    runs = swept(tmp_path, {"config.data.path": [f"text-{n}" for n in range(60)]}).runs()
    exhibit = sweep.exhibit(runs, "sweep", "Sweep")
    assert unreadable([exhibit]) == []
    names = [text.get_text() for text in exhibit.figure.legends[0].get_texts()]
    assert len(names) == sweep.MOST_LINES
    assert f"the first {sweep.MOST_LINES} of 60 lines" in exhibit.caption


@pytest.mark.parametrize(("number", "ranks"), [(12, 4), (3, 16)])
def test_any_number_of_schedules_and_ranks_can_be_read(number, ranks, tmp_path):
    names = (
        [*looks.SCHEDULES, LONG, "mine", "of", "others"][:number] if number > 3 else ["gpipe", LONG, "1f1b"][:number]
    )
    rows = list(schedule_runs(tmp_path, names, (16,), devices=("emulated",), ranks=ranks, launches=(0,)))
    for experiment in ("schedules", "rank_time"):
        assert unreadable(CASES[experiment].draw(Made(rows))) == []


def test_a_bar_of_rank_time_is_of_its_rank(tmp_path):
    """The schedules' names are beside their bars, the usual ones first, and rank 0 is at the top."""
    rows = [
        made(tmp_path, name, 4, **{"time_ms.compute": [3.0, 6.0], LAUNCH: 0, "device": "cpu"})
        for name in ("1f1b", "gpipe")
    ]
    exhibit = rank_time.exhibits(Made(rows))[0]
    [axis] = exhibit.figure.axes
    names = [label.get_text().split(",")[0] for label in axis.get_yticklabels()]
    assert names == ["gpipe", "1f1b"]
    bars = [bar for kind in axis.patches for bar in kind.get_path().to_polygons()]
    compute = sorted((bar for bar in bars if bar[:, 0].min() == 0), key=lambda bar: bar[:, 1].min())
    assert [round(np.ptp(bar[:, 0])) for bar in compute] == [3, 6, 3, 6]  # ms
    assert axis.yaxis_inverted()
    assert [text.get_text().strip() for text in axis.texts] == ["36 %", "0", "1"] * 2
