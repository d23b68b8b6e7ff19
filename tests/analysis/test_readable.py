"""No text of any figure is cut or lies on another, and a part of a sweep is drawn as far as it can be."""

from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd
import pytest

from analysis import looks, plot, sweep
from analysis.command import section
from microp.records import LAUNCH
from tests.boxes import unreadable
from tests.made_cases import CASES
from tests.made_sweeps import made, schedule_runs
from tests.made_up import Made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the traces of all made-up runs lie; runs of the same trace share it."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("experiment", CASES)
def test_every_figure_can_be_read(experiment, folder, whole, monkeypatch):
    """Of whole sweeps, at both widths; with `--whole` also of a few runs, and of a single one of each kind."""
    case = CASES[experiment]
    every = Made(list(case.whole(folder)))
    drawn = [case.draw(every)]
    assert drawn[0].exhibits
    with monkeypatch.context() as narrow:
        narrow.setattr(plot, "WIDTH", plot.ONE_COLUMN)
        assert unreadable(case.draw(every).exhibits) == []
    if whole:
        few = list(case.few(folder))
        kinds = pd.DataFrame(few).groupby(case.keys[0], dropna=False).head(1).index
        drawn += [case.draw(Made(few)), *(case.draw(Made([few[index]])) for index in kinds)]
    assert [unreadable(each.exhibits) for each in drawn] == [[]] * len(drawn)
    assert [made.stem for each in drawn for made in each.exhibits if "disturbed" not in made.table] == []


LONG = "a_schedule_whose_name_is_far_longer_than_a_panel_of_a_figure"


def swept(place, values: dict[str, list], chunks: tuple[int, ...] = (4, 8)) -> Made:
    """The runs of a user's own sweep over M and these keys of the configuration."""
    rows = [
        made(place, "gpipe", number, **dict(zip(values, point, strict=True)), **{LAUNCH: 0})
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
def test_a_users_own_sweep_can_be_read(name, folder):
    chunks = {"a column each": (4, 8), "long names": tuple(range(1, 17))}.get(name, (4,))
    runs = swept(folder, SWEPT[name], chunks).runs()
    assert unreadable([sweep.exhibit(runs, "sweep", "Sweep")]) == []


def test_of_very_many_lines_the_first_are_drawn(folder):
    runs = swept(folder, {"config.data.path": [f"text-{n}" for n in range(60)]}).runs()
    exhibit = sweep.exhibit(runs, "sweep", "Sweep")
    assert unreadable([exhibit]) == []
    names = [text.get_text() for text in exhibit.figure.legends[0].get_texts()]
    assert len(names) == sweep.MOST_LINES
    assert f"the first {sweep.MOST_LINES} of 60 lines" in exhibit.caption


@pytest.mark.parametrize(("number", "ranks"), [(12, 4), (3, 16)])
def test_any_number_of_schedules_and_ranks_can_be_read(number, ranks, folder, monkeypatch):
    usual = [name.replace("dualpipe", "zb_h2") for name in looks.SCHEDULES]  # one model on a rank
    names = [*usual, LONG, "mine", "of", "others"][:number] if number > 3 else ["gpipe", LONG, "1f1b"][:number]
    rows = list(schedule_runs(folder, names, (8,), ("never",), ("emulated",), ranks, (0,)))
    for width in (plot.WIDTH, plot.ONE_COLUMN):
        monkeypatch.setattr(plot, "WIDTH", width)
        for experiment in ("schedules", "rank_time"):
            assert unreadable(CASES[experiment].draw(Made(rows)).exhibits) == []
        numbers_name_every_marker(CASES["schedules"].draw(Made(rows)).exhibits[1])


def numbers_name_every_marker(pareto):
    """A marker's number, near it, is that of its schedule in the legend; the least memory has 1."""
    [axis], names = pareto.figure.axes, [text.get_text().split() for text in pareto.figure.legends[0].get_texts()]
    assert [number for number, *_ in names] == [str(number) for number in range(1, len(pareto.table) + 1)]
    table = pareto.table.sort_values(["activation_kib", "step_ms.median"])
    numbered = {text.get_text(): text for text in axis.texts}
    assert len(numbered) == len(axis.texts) == len(table)
    for (number, *name), point in zip(names, table.to_dict("records"), strict=True):
        assert point["schedule"].startswith("".join(name).partition("…")[0])
        assert numbered[number].xy == (point["activation_kib"], point["step_ms.median"])
        assert np.hypot(*numbered[number].xyann) < 72  # points


def test_a_bar_of_rank_time_is_of_its_rank(tmp_path):
    """The schedules' names are beside their bars, the usual ones first, and rank 0 is at the top."""
    times = {"time_ms.compute": [3.0, 7.0], "time_ms.optimizer": [0.01, 0.01]}
    rows = [made(tmp_path, name, 4, **{**times, LAUNCH: 0, "device": "cpu"}) for name in ("1f1b", "gpipe")]
    rows[0]["step_ms.median"] = 9.0  # the drawn step took 7 + 7
    exhibit, timelines = section("rank_time", Made(rows)).exhibits
    outlier = " Outliers among the drawn steps: 1f1b took 14.0 ms, of a median of 9.0."
    assert exhibit.caption.endswith(outlier)
    assert timelines.caption.endswith(outlier)
    [axis] = exhibit.figure.axes
    names = [label.get_text().split(",")[0] for label in axis.get_yticklabels()]
    assert names == ["gpipe", "1f1b"]
    bars = [bar for kind in axis.patches for bar in kind.get_path().to_polygons()]
    compute = sorted((bar for bar in bars if bar[:, 0].min() == 0), key=lambda bar: bar[:, 1].min())
    assert [round(np.ptp(bar[:, 0])) for bar in compute] == [3, 7, 3, 7]  # ms
    assert len(axis.patches) == len(exhibit.figure.legends[-1].get_texts())  # also of those too short to be seen
    assert axis.yaxis_inverted()
    assert [text.get_text().strip() for text in axis.texts] == ["42 %", "0", "1"] * 2


def parts_of(rows: list[dict], keys: list[str], whole: bool):
    """Yield a part for every key and every two keys, as rows of a store in which absent columns are absent.

    A part has one value of its keys: the first of the first part, the second of the second, and so on. Without
    `whole`, every second key alone has a part.
    """
    seen, some = set(), keys[::2]
    for number, pair in enumerate(combinations_with_replacement(keys, 2) if whole else zip(some, some, strict=True)):
        every = list(dict.fromkeys(tuple(map(row.get, pair)) for row in rows))
        values = every[number % len(every)]
        part = [row for row in rows if tuple(map(row.get, pair)) == values]
        ids = frozenset(row["run_id"] for row in part)
        if ids not in seen:
            yield ", ".join(f"{key}={value}" for key, value in zip(pair, values, strict=True)), part
        seen.add(ids)


@pytest.mark.parametrize("experiment", CASES)
def test_every_part_of_a_sweep_is_drawn_or_left_out(experiment, folder, whole):
    draw, few, _, keys = CASES[experiment]
    rows = list(few(folder))
    every = draw(Made(rows))
    stems = {exhibit.stem for exhibit in every.exhibits}
    assert stems
    assert every.answer
    smallest: list = []
    for name, part in [
        *parts_of(rows, keys, whole),
        *((f"run {row['run_id']}", [row]) for row in (rows[:: len(rows) // 3] if whole else rows[-1:])),
    ]:
        try:
            found, said = (made := draw(Made(pd.DataFrame(part)))).exhibits, made.answer
        except Exception as error:
            raise AssertionError(f"{experiment} with only {name}: {error!r}") from error
        assert {exhibit.stem for exhibit in found} <= stems
        assert "nan" not in said, said
        assert not any(exhibit.table.empty for exhibit in found), name
        smallest = found if len(part) == 1 else smallest
    assert unreadable(smallest) == []


def test_nothing_is_drawn_against_one_number_of_microbatches_one_latency_or_one_position(tmp_path):
    rows = [made(tmp_path, name, 4, **{"config.device.per": ["row"], LAUNCH: 0}) for name in ("gpipe", "1f1b")]
    assert section("m_sensitivity", Made(rows)).exhibits == []
    rows = [made(tmp_path, "gpipe", chunks, latency=0) for chunks in (4, 8)]
    assert [exhibit.stem for exhibit in section("hop_latency", Made(rows)).exhibits] == ["hop-latency-step-time"]
    skewed = {"config.partition.rank": 1.0, "config.partition.share": 0.75, "config.device.per": ["layer"]}
    rows = [made(tmp_path, "gpipe", 4, partition=[1, 3], **skewed)]
    stems = [exhibit.stem for exhibit in section("partition_skew", Made(rows)).exhibits]
    assert stems == ["partition-skew-throughput", "partition-skew-utilisation"]
