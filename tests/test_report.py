"""The report, made from what a small real sweep left on disk."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis import __main__ as report
from analysis import m_sensitivity, prediction, rank_time, sweep, viewer
from analysis.exhibit import provenance
from analysis.statistics import LAUNCH
from analysis.store import Store
from microp.costs import equal
from microp.schedules import gpipe, one_f_one_b
from microp.simulate import simulate

ROOT = Path(__file__).parent.parent
SMALL = ["model.layers=4", "model.dim=32", "batch_size=8", "steps=3", "warmup_steps=1", "tracking=disabled"]
SWEPT = ["schedule=gpipe,1f1b", "chunks=2,4", "repeat=0,1"]


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def write_plan(outputs: Path, folder: str, name: str, points: dict[str, list[str]]) -> None:
    """A sweep's plan.json: run id -> overrides."""
    plan = {"name": name, "command": [], "points": [{"run_id": i, "overrides": o} for i, o in points.items()]}
    (outputs / "sweeps" / folder).mkdir(parents=True)
    (outputs / "sweeps" / folder / "plan.json").write_text(json.dumps(plan))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What a sweep of four points and two launches left, planned under a stored name with one point that is missing."""
    folder = tmp_path_factory.mktemp("report")
    done = python("-m", "microp.run", "-m", *SMALL, *SWEPT, folder=folder)
    assert done.returncode == 0, done.stderr
    outputs = folder / "outputs"
    shutil.rmtree(outputs / "sweeps")
    rows = Store(outputs).runs().to_dict("records")
    points = {r["run_id"]: [f"schedule={r['schedule']}", f"chunks={r['chunks']}", f"repeat={r[LAUNCH]}"] for r in rows}
    assert len(points) == 8
    write_plan(outputs, "2026-01-01_m_sensitivity", "m_sensitivity", {**points, "not-there": ["chunks=8", "a=[1,2]"]})
    own = {run_id: overrides for run_id, overrides in points.items() if "repeat=0" in overrides}
    write_plan(outputs, "2026-01-02_config", "config", own)
    return outputs


@pytest.fixture(scope="module")
def made(outputs):
    """`python -m analysis`, and the page."""
    done = python("-X", "importtime", "-m", "analysis", str(outputs), folder=outputs.parent)
    assert done.returncode == 0, done.stderr
    return done, (outputs / "report" / "report.html").read_text()


# --- the store ---------------------------------------------------------------------------------------


def test_a_row_has_summary_configuration_and_environment(outputs):
    row = Store(outputs).runs("m_sensitivity").iloc[0]
    assert row["config.device.name"] == "cpu"
    assert row["step_ms.n"] == 3
    assert row["env.cores"] == os.cpu_count()
    assert Path(row["folder"]).parent.name == row["run_id"]


def test_launches_of_one_question_share_its_name(outputs):
    runs = Store(outputs).runs()
    assert (runs.groupby("question")[LAUNCH].apply(sorted).map(tuple) == (0, 1)).all()
    assert runs["question"].nunique() == 4


def test_the_newest_finished_attempt_counts(outputs, tmp_path):
    [first, *_] = (outputs / "runs").glob("gpipe-m2-*")
    copies = [tmp_path / "runs" / first.name / f"attempt-{number}" for number in (1, 2, 3)]
    for number, (copy, state) in enumerate(zip(copies, ("finished", "finished", "failed"), strict=True)):
        shutil.copytree(first / "attempt-1", copy)
        (copy / "status.json").write_text(json.dumps({"status": state, "started": number}))
    [row] = Store(tmp_path).runs().to_dict("records")
    assert row["folder"] == str(copies[1])


def test_missing_points_have_their_commands(outputs):
    command = "python -m microp.run -cd sweeps -cn m_sensitivity hydra.mode=RUN chunks=8 'a=[1,2]'"
    assert Store(outputs).missing("m_sensitivity") == [command]
    assert Store(outputs).missing("config") == []
    assert Store(outputs).missing("never_run") == ["python -m microp.run -cd sweeps -cn never_run"]


def test_a_point_that_was_planned_again_is_its_younger_run(tmp_path):
    write_plan(tmp_path, "1_mine", "mine", {"old": ["chunks=2"], "other": ["chunks=4"]})
    write_plan(tmp_path, "2_mine", "mine", {"new": ["tracking=disabled", "chunks=2"]})
    assert sorted(point.run_id for point in Store(tmp_path).points("mine")) == ["new", "other"]


def test_a_plan_that_was_cut_short_is_passed_over(tmp_path):
    write_plan(tmp_path, "1_mine", "mine", {"run": []})
    (tmp_path / "sweeps" / "1_mine" / "plan.json").write_text('{"name": "mi')
    assert Store(tmp_path).plans == []


# --- the whole report ----------------------------------------------------------------------------------


def test_the_report_is_written_and_names_what_is_missing(outputs, made):
    done, page = made
    files = {path.name for path in (outputs / "report").iterdir()}
    stems = (
        "m-sensitivity-bubble",
        "m-sensitivity-memory",
        "predicted-measured",
        "rank-time",
        "sweep-2026-01-02_config",
    )
    assert files >= {f"{stem}.{ending}" for stem in stems for ending in ("svg", "png", "csv")} | {"report.md"}
    assert {str(outputs / "report" / name) for name in files} <= set(done.stdout.splitlines())
    for text in (done.stdout, (outputs / "report" / "report.md").read_text(), page.replace("&#x27;", "'")):
        assert "-cn m_sensitivity hydra.mode=RUN chunks=8 'a=[1,2]'" in text


def test_the_report_imports_neither_torch_nor_wandb(made):
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in made[0].stderr.splitlines() if "|" in line}
    assert {"pandas", "matplotlib", "analysis"} <= loaded
    assert not loaded & {"torch", "wandb", "hydra", "omegaconf"}


def test_the_page_fetches_nothing(made):
    page = re.sub(r"base64,[A-Za-z0-9+/=]+", "", made[1])
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", page) == []
    assert re.findall(r"<link|@import|url\(|fetch\(|XMLHttpRequest|https?://", page) == []
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_every_figure_of_the_page_is_in_its_contents_with_caption_and_numbers(made):
    figures = re.findall(r'<figure id="([^"]+)">', made[1])
    assert len(figures) >= 5
    assert all(f'href="#{stem}"' in made[1] for stem in figures)
    assert made[1].count("<figcaption>") == made[1].count("<summary>The numbers") == len(figures)
    pictures = re.findall(r"data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)", made[1])
    assert all(b"<svg" in base64.b64decode(picture) for picture in pictures)


def test_the_same_rows_give_the_same_bytes(outputs, made, capsys):
    before = {path.name: path.read_bytes() for path in (outputs / "report").iterdir()}
    assert report.main([str(outputs)]) == 0
    same = {name for name, text in before.items() if (outputs / "report" / name).read_bytes() == text}
    assert {name for name in before if name.endswith((".svg", ".csv", ".md", ".html"))} <= same
    capsys.readouterr()


def test_captions_say_where_the_rows_come_from(outputs):
    runs = Store(outputs).runs()
    text = provenance(runs)
    assert text.startswith(
        "From 8 runs: 4 questions, 2 launches each of 3 measured steps; step times of launches range"
    )
    assert f"Commit {runs['env.commit'][0]}" in text
    assert f"{os.cpu_count()} core" in text


@pytest.mark.parametrize("program", ["analysis", "analysis.m_sensitivity", "analysis.prediction", "analysis.rank_time"])
def test_nothing_to_draw_is_said_in_one_sentence(program, tmp_path):
    done = python("-m", program, str(tmp_path / "none"), folder=tmp_path)
    assert done.returncode == 2
    assert re.search(r"none holds no finished run of it: make one with `python -m microp.run.*`$", done.stderr.strip())


def test_one_experiment_alone(outputs, made, tmp_path):
    copy = tmp_path / "outputs"
    shutil.copytree(outputs, copy, ignore=shutil.ignore_patterns("report"))
    done = python("-m", "analysis.m_sensitivity", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    stems = {path.stem for path in (copy / "report").iterdir()}
    assert stems == {"m-sensitivity-bubble", "m-sensitivity-memory"}  # no monolith, and no second fixed microbatch
    assert "hydra.mode=RUN chunks=8" in done.stdout


# --- any sweep -----------------------------------------------------------------------------------------


def test_a_sweep_is_drawn_over_what_varies(outputs, tmp_path, capsys):
    assert sweep.main([str(outputs / "sweeps"), "--report", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "sweep-2026-01-02_config.csv")
    assert table[["schedule.name", "chunks"]].to_numpy().tolist() == [
        ["1f1b", 2],
        ["1f1b", 4],
        ["gpipe", 2],
        ["gpipe", 4],
    ]
    assert (table["launches"] == 1).all()
    capsys.readouterr()


def test_keys_that_follow_from_others_are_no_axes(outputs):
    """schedule.builder and schedule.drain follow from schedule.name; repeat counts launches."""
    assert sweep.varying(Store(outputs).runs()) == ["chunks", "schedule.name"]


def test_a_folder_of_runs_is_a_sweep_too(outputs, tmp_path, capsys):
    assert sweep.main([str(outputs / "runs"), "--report", str(tmp_path)]) == 0
    assert (pd.read_csv(tmp_path / "sweep-runs.csv")["launches"] == 2).all()
    capsys.readouterr()


def test_without_runs_a_sweep_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        sweep.main([str(tmp_path)])
    assert stop.value.code == 2
    assert "holds no finished run" in capsys.readouterr().err


# --- what the figures say --------------------------------------------------------------------------------


class Rows:
    """A store of given rows."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows

    def runs(self, name: str | None = None) -> pd.DataFrame:
        return self.rows

    def missing(self, name: str) -> list[str]:
        return []


def emulated(like: pd.Series, ranks: int, chunks: int, step_ms: float, launch: int = 0, **changes) -> dict:
    """A row of a made-up run of GPipe with F = 5, B = 10 ms a row, and 1 row a microbatch."""
    bubble = (ranks - 1) / (chunks + ranks - 1)
    device = {"forward": 5.0, "backward": 10.0, "weight": float("nan")}
    return {
        **like.to_dict(),
        **{f"config.device.{kind}_ms": value for kind, value in device.items()},
        "config.device.per": ["layer", "row"],
        "device": "emulated",
        "schedule": "gpipe",
        "config.schedule.builder": "microp.schedules.gpipe",
        "partition": [1] * ranks,
        "ranks": ranks,
        "chunks": chunks,
        "batch_size": chunks,
        LAUNCH: launch,
        "run_id": f"{ranks}-{chunks}-{launch}",
        "question": f"{ranks}-{chunks}",
        "step_ms.median": step_ms,
        "step_ms.p10": step_ms,
        "step_ms.p90": step_ms,
        "bubble.measured": bubble,
        "bubble.closed_form": bubble,
        "peak_activation_mib": [float(chunks)] * ranks,
        **changes,
    }


def made_up(outputs: Path, slowest: float = 1.0) -> Rows:
    """K = 4, M = 1 to 32, two launches, times by GPipe's formula; `slowest`: how slow the second is at M = 8."""
    like = Store(outputs).runs().iloc[0]
    rows = [
        emulated(like, 4, chunks, (chunks + 3) * 15.0 * (slowest if chunks == 8 and launch == 1 else 1), launch)
        for chunks in (1, 2, 4, 8, 16, 32)
        for launch in (0, 1)
    ]
    return Rows(pd.DataFrame(rows))


def by_stem(exhibits: list) -> dict:
    return {exhibit.stem: exhibit for exhibit in exhibits}


def test_the_seeds_examples_are_in_the_table(outputs):
    table = by_stem(m_sensitivity.exhibits(made_up(outputs)))["m-sensitivity-bubble"].table.set_index("chunks")
    assert table.loc[4, "as fraction"] == "3/7"
    assert table.loc[32, "as fraction"] == "3/35"


def test_the_fit_finds_the_depth(outputs):
    """T = (M + 3) (F + B): a/b + 1 = 4."""
    [line] = by_stem(m_sensitivity.exhibits(made_up(outputs)))["m-sensitivity-depth"].table.to_dict("records")
    assert (line["a"], line["b"]) == pytest.approx((45, 15))
    assert (line["depth"], line["formula"]) == pytest.approx((4, 4))


def test_the_monolith_is_the_run_of_the_same_work(outputs):
    """K = 4 stages of 15 ms, M rows: the monolith needs 60 M ms, and the pipeline 15 (M + 3)."""
    pipeline = made_up(outputs).rows
    like = Store(outputs).runs().iloc[0]
    alone = [
        emulated(like, 1, 1, 60.0 * chunks, launch, batch_size=chunks, partition=[4])
        for chunks in (4, 32)
        for launch in (0, 1)
    ]
    store = Rows(pd.concat([pipeline, pd.DataFrame(alone)], ignore_index=True))
    table = by_stem(m_sensitivity.exhibits(store))["m-sensitivity-speed-up"].table.set_index("chunks")
    assert table["speed_up"].to_dict() == pytest.approx({4: 240 / 105, 32: 1920 / 525})
    assert table["formula"].tolist() == pytest.approx(table["speed_up"].tolist())


def test_the_memory_law_is_gpipes(outputs):
    """One microbatch takes 1 MiB at M = 1, and GPipe holds M of them."""
    table = by_stem(m_sensitivity.exhibits(made_up(outputs)))["m-sensitivity-memory"].table
    assert table["activation_mib"].tolist() == table["formula"].tolist() == table["chunks"].tolist()


def test_the_order_of_the_rows_does_not_matter(outputs, tmp_path):
    rows = made_up(outputs, 1.2).rows
    for name, ordered in {"a": rows, "b": rows.sample(frac=1, random_state=1)}.items():
        for exhibit in m_sensitivity.exhibits(Rows(ordered)):
            exhibit.save(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir() if path.suffix != ".png")
    assert len(files) == 6
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


@pytest.mark.parametrize(("slowest", "hollow"), [(1.05, []), (1.2, [8])])
def test_a_point_that_is_too_wide_is_drawn_hollow(outputs, slowest, hollow):
    exhibit = by_stem(m_sensitivity.exhibits(made_up(outputs, slowest)))["m-sensitivity-depth"]
    lines = [line for line in exhibit.figure.axes[0].get_lines() if line.get_markerfacecolor() == "white"]
    assert [x for line in lines for x in line.get_xdata()] == hollow
    legend = [text.get_text() for text in exhibit.figure.legends[0].get_texts()]
    assert ("hollow: spread too wide" in legend) == bool(hollow)


def test_prediction_and_noise(outputs):
    [exhibit] = prediction.exhibits(Store(outputs))
    table = exhibit.table
    assert len(table) == 8
    assert (table["error"] - (table["predicted_ms"] / table["measured_ms"] - 1)).abs().max() < 1e-12
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


def test_rank_time_adds_up(outputs):
    """Every rank's times add up to the step's wall time, the same on both ranks."""
    [exhibit] = rank_time.exhibits(Store(outputs))
    times = [column for column in exhibit.table.columns if column.endswith("_ms")]
    sums = exhibit.table.assign(total=exhibit.table[times].sum(axis=1)).groupby("run_id")["total"]
    assert len(sums) == 4
    assert (sums.max() - sums.min()).max() < 1e-6


# --- the timelines ----------------------------------------------------------------------------------------


def test_a_timeline_has_every_action_with_its_wait():
    spans = simulate(one_f_one_b(2, 2), equal(2, 5_000_000, 10_000_000))
    panel = viewer._panel(spans)
    rows = [panel["spans"][at : at + 7] for at in range(0, len(panel["spans"]), 7)]
    assert panel["makespan"] == 45_000
    assert [row for row in rows if row[0] == 1] == [  # rank, op, stage, microbatch, start, length, wait
        [1, 0, 1, 0, 5_000, 5_000, 5_000],
        [1, 1, 1, 0, 10_000, 10_000, 0],
        [1, 0, 1, 1, 20_000, 5_000, 0],
        [1, 1, 1, 1, 25_000, 10_000, 0],
    ]
    assert len(rows) == len(spans)


def test_one_launch_of_each_question_is_shown(outputs, made):
    data = json.loads(re.search(r'id="timelines">(.*?)</script>', made[1], re.DOTALL)[1])
    assert [run["id"].rsplit("-", 1)[0] for run in data["runs"]] == [
        "1f1b-m2-k2",
        "1f1b-m4-k2",
        "gpipe-m2-k2",
        "gpipe-m4-k2",
    ]
    for run in data["runs"]:
        chunks = int(run["id"].split("-m")[1].split("-")[0])
        assert all(len(panel["spans"]) == 7 * len(gpipe(2, chunks).ranks[0]) * 2 for panel in run["panels"].values())


def test_a_page_that_is_full_leaves_the_longest_out(outputs, monkeypatch):
    monkeypatch.setattr(viewer, "MOST_SPANS", 30)  # a timeline of M = 2 has 8 actions, one of M = 4 has 16
    data, left_out = viewer.timelines(Store(outputs).runs())
    assert len(data["runs"]) == 2
    assert left_out == 2


def test_no_name_ends_the_script():
    assert "</script" not in viewer.script({"runs": [{"name": "</script>"}]}).split("\n")[0].removesuffix("</script>")
