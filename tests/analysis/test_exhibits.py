"""What the figures and the timelines of the report say."""

import json
import re
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from analysis import engine_speed, prediction, rank_time, sweep
from analysis.command import section
from analysis.exhibit import commits, machines, markers
from analysis.forecasts import errors, forecasts, kendall, regrets, summary
from microp.records import LAUNCH
from microp.results import Store
from tests.made_cases import CASES
from tests.made_sweeps import made
from tests.made_up import Made, by_stem


def made_up(folder: Path, slowest: float = 1.0) -> Made:
    """K = 4, M = 1 to 32 rows, two launches, times by GPipe's formula; `slowest`: the second launch at M = 8."""
    rows = []
    for chunks, launch in product((1, 2, 4, 8, 16, 32), (0, 1)):
        more = {LAUNCH: launch, "config.device.per": ["layer", "row"], "peak_activation_mib": [float(chunks)] * 4}
        slower = slowest if chunks == 8 and launch else 1.0
        rows.append(made(folder, "gpipe", chunks, 4, slower=slower, question=str(chunks), **more))
    return Made(rows)


def drawn_m(store: Made) -> dict:
    return by_stem(section("m_sensitivity", store).exhibits)


def hollow(axes) -> list[float]:
    lines = [line for axis in axes for line in axis.get_lines() if line.get_markerfacecolor() == "white"]
    return [x for line in lines for x in line.get_xdata()]


def test_the_table_has_fractions_and_the_fit_finds_the_depth(tmp_path):
    """T = (M + 3) (F + B): a/b + 1 = 4."""
    store = made_up(tmp_path)
    fractions = drawn_m(store)["m-sensitivity-bubble"].table.set_index("chunks")["as fraction"]
    assert (fractions[4], fractions[32]) == ("3/7", "3/35")
    [line] = drawn_m(store)["m-sensitivity-depth"].table.to_dict("records")
    assert (line["a"], line["b"], line["depth"], line["formula"]) == pytest.approx((45, 15, 4, 4))
    few = drawn_m(Made(store.frame[store.frame["chunks"].isin((1, 4, 16))]))
    assert "m-sensitivity-depth" not in few  # no line is fitted
    ticks = few["m-sensitivity-bubble"].figure.axes[0].get_xticklabels()
    assert [label.get_text() for label in ticks] == ["1", "4", "16"]


def test_the_monolith_is_the_run_of_the_same_work(tmp_path):
    """K = 4 stages of 15 ms, M rows: the monolith needs 60 M ms, and the pipeline 15 (M + 3)."""
    pipeline = made_up(tmp_path).frame
    alone = [
        made(tmp_path, "naive", 1, 1, scale=4 * chunks, batch_size=chunks, partition=[4], **{LAUNCH: launch})
        for chunks in (4, 32)
        for launch in (0, 1)
    ]
    for row in alone:
        row |= {"config.device.per": ["layer", "row"], "config.model.layers": 4}
    alone[0]["disturbed"] = True
    store = Made(pd.concat([pipeline, pd.DataFrame(alone)], ignore_index=True))
    exhibit = drawn_m(store)["m-sensitivity-speed-up"]
    assert "; 1 of 8 runs was disturbed." in exhibit.caption
    table = exhibit.table.set_index("chunks")
    assert table["speed_up"].to_dict() == pytest.approx({4: 240 / 105, 32: 1920 / 525})
    assert table["formula"].tolist() == pytest.approx(table["speed_up"].tolist())
    both = drawn_m(Made(list(CASES["m_sensitivity"].few(tmp_path))))["m-sensitivity-speed-up"]  # a panel each
    assert both.runs["run_id"].is_unique


@pytest.mark.parametrize(("slowest", "wide"), [(1.05, []), (1.2, [8])])
def test_a_point_that_is_too_wide_is_drawn_hollow(tmp_path, slowest, wide):
    figure = drawn_m(made_up(tmp_path, slowest))["m-sensitivity-depth"].figure
    assert hollow(figure.axes[:1]) == wide
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert ("hollow: disturbed, or spread too wide" in names) == bool(wide)
    disturbed = drawn_m(Made(made_up(tmp_path).frame.assign(disturbed=True)))
    assert hollow(disturbed["m-sensitivity-depth"].figure.axes)
    assert not hollow(disturbed["m-sensitivity-memory"].figure.axes)


def test_a_sweep_says_what_is_the_same_in_all_its_runs(tmp_path):
    exhibit = sweep.exhibit(made_up(tmp_path).frame, "sweep", "Sweep")
    assert exhibit.caption.startswith("6 points; varied: chunks; the same in all: gpipe, mlp, emulated, K = 4. ")
    assert [text.get_text() for text in exhibit.figure.legends[0].get_texts()] == ["gpipe"]
    assert exhibit.figure.legends[0].get_title().get_text() == "Emulated runs: nominal action times"


def test_emulated_runs_have_panels_of_their_own_and_the_figure_says_how_many_they_are(tmp_path):
    """Beside keys that some runs do not have, and without a bubble of one process."""
    size, rows = "config.sync.bucket_mb", []
    for device, (mib, sync), chunks in product(("cpu", "emulated"), ((None, "flat"), (25.0, "ddp")), (1, 2, 4)):
        if device == "cpu" or sync == "ddp":
            rows.append(made(tmp_path, "gpipe", chunks, 1, device=device, **{size: mib, "config.sync.name": sync}))
    figure = sweep.exhibit(Made(rows).frame, "sweep", "Sweep").figure
    assert [axis.get_title("left") for axis in figure.axes] == ["cpu", "emulated", "", ""]
    assert figure.legends[0].get_title().get_text().startswith("Emulated, 3 of 9 runs: ")
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"ddp", "flat"}


def test_prediction_and_noise(outputs):
    shares: list[float] = []  # of the runs that are read, for a bar
    [exhibit] = section("prediction", Store(outputs, tell=shares.append)).exhibits
    assert shares == [number / 8 for number in range(8)]
    table = exhibit.table
    assert len(table) == 8
    assert (table["error"] - (table["replayed_ms"] / table["measured_ms"] - 1)).abs().max() < 1e-12
    own = table[(table["schedule"] == "gpipe") & (table["chunks"] == 2)]
    first, second = own["measured_ms"]
    assert sorted(own["noise"]) == pytest.approx(sorted([first / second - 1, second / first - 1]))


def test_of_engines_that_took_turns_the_runs_own_counts(tmp_path):
    turns = [("measured", "torch"), ("measured", "microp"), ("measured", "microp"), ("memory", "microp")]
    rows = [json.dumps({"phase": phase, "engine": engine, "step": step}) for step, (phase, engine) in enumerate(turns)]
    for rank in range(2):
        (tmp_path / f"steps.rank{rank}.jsonl").write_text("\n".join(rows))
    steps = prediction.measured_steps(tmp_path, 2)
    assert [[row["step"] for row in step] for step in steps] == [[1, 1], [2, 2]]


def test_engine_speed_is_the_median_over_launches_and_says_where_torch_is_not(tmp_path):
    """Three launches; beside ZB-H1 on emulated devices no torch was run."""
    rows = []
    for name, together, (launch, over) in product(("gpipe", "zb_h1"), (False, True), enumerate((1.01, 1.03, 1.02))):
        if name == "zb_h1" or not together:
            torch = over + 0.1 if name == "gpipe" else float("nan")
            ratios = dict(zip(engine_speed.RATIOS, (over, torch, torch / over), strict=True))
            more = {LAUNCH: launch, "config.engine.batch_weights": together, "comms": "shm", **ratios}
            rows.append(made(tmp_path, name, 8, 4, question=f"{name}-{together}", **more))
    [exhibit] = section("engine_speed", Made(rows)).exhibits
    table = exhibit.table.set_index("schedule")
    assert table["launches"].to_dict() == {"gpipe": 3, "zb_h1": 3, "zb_h1, W together": 3}
    assert table.loc["gpipe", "microp over the limit"] == pytest.approx(1.02)
    assert table.loc["gpipe", "torch over the limit"] == pytest.approx(1.12)
    assert pd.isna(table.loc["zb_h1", "torch over microp"])


def test_rank_time_adds_up(outputs):
    """Every rank's times add up to the step's wall time, the same on both ranks."""
    exhibit, timelines = section("rank_time", Store(outputs)).exhibits
    times = [column for column in exhibit.table.columns if column.endswith("_ms")]
    sums = exhibit.table.assign(total=exhibit.table[times].sum(axis=1)).groupby("run_id")["total"]
    assert len(sums) == 4
    assert (sums.max() - sums.min()).max() < 1e-6
    assert set(timelines.table["schedule"]) == {"gpipe", "1f1b"}
    assert (timelines.table["bubble"] > 0).all()
    noisy = section("rank_time", Made(Store(outputs).runs().assign(disturbed=True))).exhibits[1]
    titles = [axis.get_title("left") for axis in noisy.figure.axes]
    assert all(map(re.match, [rf"{name} \(disturbed, median " for name in timelines.table["schedule"]], titles))


def drawn(rows: list[dict]) -> tuple[dict[str, list[str]], rank_time.Exhibit]:
    """The names of the bars in each panel, by the panel's title on one line."""
    for number, row in enumerate(rows):
        row.update({"question": str(number), LAUNCH: 0})
    exhibit = section("rank_time", Made(rows)).exhibits[0]
    panels = {
        axis.get_title(loc="left").replace("\n", " "): [label.get_text() for label in axis.get_yticklabels()]
        for axis in exhibit.figure.axes
    }
    return {title: [name.rpartition(",")[0] for name in names] for title, names in panels.items()}, exhibit


def test_every_key_in_which_runs_differ_is_named(tmp_path):
    path = "/home/somebody/a/folder/{}/of/texts/that/is/deep/and/has/a/name/that/is/long.txt"
    others = {"config.engine.name": ["microp", "torch"], "config.learning_rate": [0.1, 0.2]}
    others |= {"config.model.dim": [64, 128], "config.data.path": [path.format(1), path.format(2)]}
    usual = {key: values[0] for key, values in others.items()}
    rows = [made(tmp_path, "gpipe", 8, **usual), made(tmp_path, "1f1b", 8, **usual)]
    rows += [made(tmp_path, "gpipe", 8, **{**usual, key: values[1]}) for key, values in others.items()]
    panels, exhibit = drawn(rows)
    assert sorted(panels.values()) == [["gpipe"]] * 4 + [["gpipe", "1f1b"]]
    for told in ("engine=torch", "data.path=/home/somebody/a/folder/2/of", "learning_rate=0.2", "model.dim=128"):
        assert sum(told in title.replace(" ", "") for title in panels) == 1
    assert {"engine.name", "learning_rate", "model.dim", "data.path"} <= set(exhibit.table)


def test_a_panel_is_told_from_all_configurations_by_few_keys(tmp_path, monkeypatch):
    """Also from those that are not drawn: a sweep of other rows, of other policies, and a run of more steps."""
    size, steps, dim = "config.batch_size", "config.steps", "config.model.dim"
    rows = [made(tmp_path, name, 4, **{size: 64, steps: 10, dim: 32}) for name in ("gpipe", "1f1b")]
    rows.append(made(tmp_path, "gpipe", 4, **{size: 16, steps: 20, dim: 8}))
    rows += [made(tmp_path, "gpipe", 8, checkpointing=each, **{size: 16, steps: 10}) for each in ("never", "always")]
    rows += [made(tmp_path, "gpipe", 16, **{size: 16, steps: number}) for number in (10, 20)]
    told = ["4, batch_size=64", "4, batch_size=16", "8, checkpointing=never", "8, checkpointing=always"]
    titles = [f"emulated, mlp, K = 2, M = {each}" for each in (*told, "16, steps=10", "16, steps=20")]
    assert set(drawn(rows)[0]) == {*titles}
    monkeypatch.setattr(rank_time, "PAGE", 1)
    assert list(drawn(rows)[0]) == titles[:1]


def test_of_more_configurations_than_have_room_the_caption_says_so(tmp_path):
    """A figure is at most a page high."""
    panels, exhibit = drawn([made(tmp_path, "gpipe", chunks) for chunks in range(1, 15)])
    number = len(panels)
    assert 4 < number < 10
    said = f"Drawn: {number} of 14 panels, of most schedules first, but what fills over half a page last; the table"
    assert said in exhibit.caption
    assert exhibit.table["chunks"].nunique() == 14
    assert exhibit.figure.get_figheight() < 10


def runs(*rows: tuple[str, int, float, float], launches: int = 1, **changes) -> pd.DataFrame:
    """Runs by schedule, microbatches, predicted and measured ms; each further launch takes 2 % longer."""
    names = ("schedule", "chunks", "predicted.step_ms", "replayed.step_ms")
    frame = pd.DataFrame([(*row, launch) for row in rows for launch in range(launches)], columns=[*names, "launch"])
    same = {"ranks": 2, "replicas": 1, "checkpointing": "never", "model": "mlp", "device": "cpu", "batch_size": 256}
    same["disturbed"] = False
    frame = frame.assign(**same, partition=[[8, 8]] * len(frame), **{"config.model.dim": 64})
    frame["question"] = frame["schedule"] + "-" + frame["chunks"].astype(str)
    frame["step_ms.median"] = frame["replayed.step_ms"] * (1 + 0.02 * frame["launch"])
    return frame.assign(**changes)


def test_errors_are_relative_and_of_the_median_launch():
    table = forecasts(runs(("gpipe", 4, 110, 100), ("1f1b", 4, 90, 100), launches=3))
    assert table["measured"].tolist() == [102, 102]
    assert table["noise"].tolist() == pytest.approx([0.02 / 1.02] * 2)
    found = errors(table, "predicted")
    assert found["max"] == pytest.approx(1 - 90 / 102)
    assert found["bias"] == pytest.approx((110 / 102 + 90 / 102) / 2 - 1)


def test_the_plan_chosen_and_the_order_of_plans():
    table = forecasts(runs(("gpipe", 4, 50, 100), ("1f1b", 4, 60, 90), ("zb_h1", 4, 70, 120), ("naive", 4, 65, 121)))
    assert regrets(table, "predicted") == pytest.approx([100 / 90 - 1])
    # apart: 5 of 6 pairs, since 120 and 121 are alike; in the wrong order is one, of gpipe and 1f1b
    assert kendall(table, "predicted") == pytest.approx((4 - 1) / 5)
    assert kendall(table, "replayed") == 1
    known = runs(("gpipe", 4, 50, 100), ("gpipe", 8, 60, 90), ("1f1b", 8, 61, 95))
    for per, lost in (([], [0.0]), (["row"], [100 / 90 - 1])):  # where rows do not count, M = 4 and 8 do not compare
        nominal = known.assign(device="emulated", **{"config.device.name": "emulated"})
        nominal["config.device.per"] = [["layer", *per]] * len(known)
        assert regrets(forecasts(nominal), "predicted") == pytest.approx(lost)
        assert kendall(forecasts(nominal), "predicted") == (-1 / 3 if per else 1)


def test_baselines_know_the_other_configurations_only():
    table = forecasts(runs(("gpipe", 1, 1, 400), ("gpipe", 3, 1, 300), ("gpipe", 7, 1, 100))).set_index("chunks")
    assert table["mean"].tolist() == [200, 250, 350]
    assert table["FLOPs"].tolist() == pytest.approx([200, 250, 350])  # all have the same work
    unit = (300 * 3 / 4 + 100 * 7 / 8) / 2
    assert table.loc[1, "closed bubble"] == pytest.approx(unit * 2)
    assert set(summary(table.reset_index())["forecast"]) == {"replayed", "predicted", "closed bubble", "FLOPs", "mean"}


def test_what_was_not_predicted_is_left_out_and_a_run_without_an_end_changes_nothing():
    assert forecasts(pd.DataFrame({"run_id": ["a"]})).empty
    assert forecasts(runs(("gpipe", 4, 1, 2), replicas=2)).empty
    assert forecasts(runs(("gpipe", 4, None, 2))).empty
    finished = runs(("gpipe", 4, 110, 100), ("1f1b", 4, 90, 100))
    killed = pd.DataFrame([{"question": "gpipe-8", "schedule": "gpipe", "model": "mlp", "device": "cpu"}])
    assert forecasts(pd.concat([finished, killed])).equals(forecasts(finished))


def test_a_caption_has_bars_only_where_launches_repeat():
    noisy = pd.DataFrame({"question": ["a", "a", "b"], "disturbed": [True, True, False]})
    assert markers(noisy).startswith("Markers: medians over launches; bars: ")
    assert markers(noisy).endswith(", cut off where they are long; 2 of 3 runs were disturbed.")
    assert markers(noisy.iloc[1:]) == "Markers: one launch each; 1 of 2 runs was disturbed."


def test_what_an_imported_run_does_not_know_of_its_machine_is_left_out():
    """pandas makes 2.0 of 2 cores beside a run that has none, and NaN of what is missing."""
    env = {"processor": ["EPYC", "", "EPYC", None], "cores": [2, None, 1, None], "commit": ["3f1"] + [None] * 3}
    runs = pd.DataFrame(env | {"gpus": [["H100"], [], None, float("nan")]}).add_prefix("env.")
    assert machines(runs) == "EPYC, 1 core and EPYC, 2 cores, H100"
    assert commits(runs) == "3f1"
    assert (machines(runs.iloc[[1, 3]]), commits(runs.iloc[[1, 3]])) == ("unknown machine", "unknown")
