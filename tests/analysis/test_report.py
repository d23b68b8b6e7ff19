"""The report, made from what a small real sweep left on disk."""

import html
import json
import os
import re
import runpy
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from recorded import write_plan
from stored import amend, store_run
from user import ran, start

from analysis import __main__ as report
from analysis import m_sensitivity, sweep, timeline
from analysis.page import escaped
from microp.records import write_json
from microp.results import Store


@pytest.fixture(scope="module")
def made(outputs):
    """`python -m analysis`, and the page."""
    done = start([sys.executable, "-X", "importtime", "-m", "analysis", str(outputs)], outputs.parent)
    assert done.returncode == 0, done.stderr
    return done, (outputs / "report" / "report.html").read_text()


def test_a_row_has_summary_configuration_and_environment_and_missing_points_have_their_commands(outputs):
    row = Store(outputs).runs("m_sensitivity").iloc[0]
    assert (row["config.device.name"], row["step_ms.n"], row["env.cores"]) == ("cpu", 3, os.cpu_count())
    assert Path(row["folder"]).parent.name == row["run_id"]
    command = "python -m microp.run -cn m_sensitivity hydra.mode=RUN chunks=8 'a=[1,2]'"
    assert Store(outputs).missing("m_sensitivity") == [command]
    assert Store(outputs).missing("config") == []
    quick, whole = Store(outputs).missing("bidirectional")
    assert quick == "python -m microp.run -cn bidirectional_quick  # 16 points, 1 minute on two cores"
    assert whole == "python -m microp.run -cn bidirectional  # 96 points, 6 minutes on two cores"


def test_a_stored_sweep_without_a_module_is_shown_with_its_question(outputs):
    store = Store(outputs)
    drawn = sweep.of_plan(store, store.plans[0]._replace(experiment="bidirectional"))
    assert drawn.answer.startswith("For which M do two copies of the model in opposite directions pay, if B takes")


def test_a_point_that_was_planned_again_is_its_younger_run(tmp_path):
    write_plan(tmp_path, "1_mine", "mine", {"old": ["chunks=2"], "other": ["chunks=4"]})
    write_plan(tmp_path, "2_mine", "mine", {"new": ["tracking=disabled", "chunks=2"]})
    assert sorted(point.run_id for point in Store(tmp_path).points("mine")) == ["new", "other"]
    states = {"finished": 1, "failed": 2, "interrupted": 4}
    runs = {store_run(tmp_path, f"chunks={m}", status=state): [f"chunks={m}"] for state, m in states.items()}
    write_plan(tmp_path, "3_ours", "ours", runs)
    assert Store(tmp_path).missing("ours") == ["python -m microp.run -cn ours hydra.mode=RUN chunks=4"]


def test_every_file_of_the_report_is_written_and_told_without_torch_or_wandb(outputs, made):
    done, _ = made
    files = {path.name for path in (outputs / "report").iterdir()}
    stems = [f"m-sensitivity-{what}" for what in ("bubble", "memory")]
    stems += ["replayed-measured", "rank-time", "sweep-2026-01-02_config"]
    assert files >= {f"{stem}.{ending}" for stem in stems for ending in ("svg", "png", "csv")} | {"report.md"}
    told = re.findall(r"^(\S+\.(?:svg(?= \.pdf \.png \.csv$)|md$|html$))", done.stdout, flags=re.MULTILINE)
    assert {Path(path).stem for path in told} == {Path(name).stem for name in files}
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert {"pandas", "matplotlib", "analysis"} <= loaded
    assert not loaded & {"torch", "wandb", "hydra", "omegaconf"}


def test_the_page_fetches_nothing_and_links_lead_to_headings_or_to_files_beside_it(outputs, made):
    page = re.sub(r"base64,[A-Za-z0-9+/=]+", "", made[1])
    assert re.findall(r"""src\s*=\s*["'](?!data:)""", page) == []
    assert re.findall(r"<link|@import|url\(|fetch\(|XMLHttpRequest|https?://", page) == []
    elements = Elements(made[1])
    ids = {attributes["id"] for _, attributes in elements.found if "id" in attributes}
    places = elements.values("a", "href")
    assert {place[1:] for place in places if place.startswith("#")} <= ids
    assert all((outputs / "report" / place).is_file() for place in places if not place.startswith("#"))
    figures = elements.values("figure", "id")
    assert len(figures) >= 5
    assert {f"{stem}.{ending}" for stem in figures for ending in ("svg", "png", "csv")} <= {*places}
    assert made[1].count("<figcaption>") == made[1].count("<summary>The numbers") == len(figures)


def test_the_page_begins_with_what_there_is(outputs, made):
    """What there is, the user's own sweep, timelines, the experiment with runs, what uses all runs, commands."""
    page, text = made[1], (outputs / "report" / "report.md").read_text()
    anchors = ["own-sweeps", "timelines-title", "m_sensitivity", "prediction", "rank_time", "not-run", "about"]
    assert re.findall(r'<(?:h2|details class="last") id="([^"]+)"', page) == anchors
    assert re.findall(r'<li><a href="#([^"]+)">', page) == anchors
    overview = re.search(r"</h1>\n<p>(.*)</p>", page)[1]
    assert overview.startswith("8 finished runs of 4 configurations, started ")
    assert overview.count(". ") == 1
    about = page[page.index('id="about"') :]
    assert f"{os.cpu_count()} core" in about
    assert ("1 run: " in about or "runs: " in about) == ("was disturbed: hollow markers" in overview)
    assert "from M = 2 to 4 the bubble of gpipe goes from" in page
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings[:2] == ["Your own sweeps, newest first", escaped(str(m_sensitivity.__doc__).splitlines()[0])]
    assert headings[-2:] == ["Not run yet", "About the runs"]


def test_what_was_not_run_is_one_list_of_commands(outputs, made):
    done, page = made
    text = (outputs / "report" / "report.md").read_text().partition("## Not run yet")[2]
    commands = html.unescape(page[page.index('<details class="last" id="not-run">') :])
    for name in ("hybrid_quick  # 12 points, 1 minute", "hybrid  # 72 ", "m_sensitivity hydra.mode=RUN chunks=8 'a=[1"):
        assert f"python -m microp.run -cn {name}" in text
        assert f"python -m microp.run -cn {name}" in commands
    assert re.search(r"sweeps not started, \d+ \(.*\):\n  python -m microp.run -cn ", done.stdout)
    assert "points not run yet, 1 (" in done.stdout


class Elements(HTMLParser):
    """The elements of a page: (tag, attributes), and the text between tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    def values(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for each, attributes in self.found if each == tag and name in attributes]


NAME = 'a"><script>`|*'  # breaks out of the page, unless it is escaped
MODEL = "</script><script>"  # out of the data of the timelines


@pytest.fixture(scope="module")
def odd(outputs, tmp_path_factory):
    """The report of runs of which two have no result, and of a sweep, its folder, its points and a model named NAME.

    The outputs folder, the two attempts, the page and the text.
    """
    copy = tmp_path_factory.mktemp("odd") / "outputs"
    shutil.copytree(outputs, copy, ignore=shutil.ignore_patterns("report"))
    failed, cut = sorted((copy / "runs").glob("gpipe-m4-*/attempt-1"))
    write_json(failed / "status.json", {"status": "failed", "started": 1, "message": "rank 1 <died>\nmore"})
    (failed / "summary.json").unlink()
    (cut / "status.json").write_text("{")
    [summary, *_] = sorted(copy.glob("runs/1f1b-m2-*/attempt-1/summary.json"))
    amend(summary, model=MODEL)
    ids = [path.name for path in (copy / "runs").iterdir()]
    write_plan(copy, f"2026-01-03_{NAME}", NAME, {**{run: [] for run in ids}, "not-there": [f"x={NAME}"]})
    assert report.main([str(copy)]) == 0
    return failed, cut, *((copy / "report" / name).read_text() for name in ("report.html", "report.md"))


def test_runs_without_a_result_are_listed(odd):
    failed, cut, page, text = odd
    assert "<summary>Without a result: 2</summary>" in page
    assert f"<li>{failed}: failed, rank 1 &lt;died&gt; (again: python -m microp.run " in page
    assert re.search(rf"<li>.*{cut}.*</li>", page)
    assert len(re.findall(r"^\* ", text.partition("## Without a result")[2].partition("##")[0], re.MULTILINE)) == 2


def test_names_that_users_made_are_escaped(odd):
    """A sweep, its folder, its points and a run's model are named so as to break out of the page."""
    *_, page, text = odd
    elements = Elements(page)
    assert [tag for tag, _ in elements.found].count("script") == 2  # the timelines' data and the viewer
    stem, title = f"sweep-2026-01-03_{NAME}", f"Sweep 2026-01-03_{NAME}: schedule, chunks"
    assert stem in elements.values("figure", "id")
    assert "sweep-2026-01-03_a%22%3E%3Cscript%3E%60%7C%2A.svg" in elements.values("a", "href")
    assert title in elements.values("img", "alt")
    assert title in elements.text
    data = re.search(r'<script type="application/json" id="timelines">(.*?)</script>', page, flags=re.DOTALL)[1]
    assert any(MODEL in run["name"] for run in json.loads(data)["runs"])
    assert any(f"-cn '{NAME}' hydra.mode=RUN 'x={NAME}'" in text for text in elements.text)

    assert r'### Sweep 2026-01-03_a"\>\<script\>\`\|\*: schedule, chunks' in text.splitlines()
    assert "(sweep-2026-01-03_a%22%3E%3Cscript%3E%60%7C%2A.svg)" in text
    assert "<script>" not in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def test_the_same_rows_give_the_same_bytes_and_captions_say_where_they_come_from(outputs, made, capsys):
    assert "From 8 runs of 4 configurations, 2 launches each; 3 measured steps per launch; launches" in made[1]
    assert f"Commit {Store(outputs).runs()['env.commit'][0]}" in made[1]
    files = [path for path in (outputs / "report").iterdir() if path.suffix in (".svg", ".csv", ".md", ".html")]
    before = [path.read_bytes() for path in files]
    assert report.main([str(outputs)]) == 0
    assert [path.read_bytes() for path in files] == before
    capsys.readouterr()


@pytest.mark.parametrize("module", [report, m_sensitivity, sweep, timeline])
def test_a_folder_without_runs_or_that_does_not_exist_is_one_sentence(module, tmp_path, monkeypatch, capsys):
    """As it runs with `python -m`, in this process."""
    none = tmp_path / "none"
    monkeypatch.setattr(sys, "argv", ["analysis", str(none)])
    for said in (f"there is no folder {none}: give ", r"none holds no "):
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(module.__file__), run_name="__main__")
        [error] = capsys.readouterr().err.splitlines()
        assert stop.value.code == 2
        assert re.search(said, error)
        none.mkdir(exist_ok=True)


def test_schedules_that_no_run_has_or_that_are_too_few_are_named(outputs, tmp_path, monkeypatch, capsys):
    """Beside them lies a run without a result, which has no schedule."""
    copy = Path(shutil.copytree(outputs, tmp_path / "outputs", ignore=shutil.ignore_patterns("report")))
    store_run(copy, "schedule=zb_h1", status="running")
    for module, place in ((report, copy), (m_sensitivity, copy), (sweep, copy / "sweeps"), (sweep, copy / "runs")):
        monkeypatch.setattr(sys, "argv", ["analysis", str(place), "--schedule=gpipe,nosuch,zb_h1"])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_path(str(module.__file__), run_name="__main__")
        said = f"error: {place} holds no finished run of schedule=nosuch,zb_h1: there are 1f1b, gpipe\n"
        assert capsys.readouterr().err.endswith(said)
    assert sweep.main([str(copy / "runs"), f"--report={tmp_path}", "--schedule=gpipe"]) == 0
    assert pd.read_csv(tmp_path / "only-gpipe" / "sweep-runs.csv")["chunks"].tolist() == [2, 4]
    assert report.main([str(copy), "--schedule=gpipe,1f1b"]) == 0
    assert [path.name for path in (copy / "report").iterdir()] == ["only-1f1b-gpipe"]  # what was drawn of all is kept
    assert f"open  {copy / 'report/only-1f1b-gpipe/report.html'}" in capsys.readouterr().out


def test_one_experiment_alone(outputs, made, tmp_path):
    copy = tmp_path / "outputs"
    shutil.copytree(outputs, copy, ignore=shutil.ignore_patterns("report"))
    done = ran(folder=tmp_path, program="analysis.m_sensitivity")
    stems = {path.stem for path in (copy / "report").iterdir()}
    assert stems == {"m-sensitivity-bubble", "m-sensitivity-memory"}  # no monolith, and no second fixed microbatch
    assert "hydra.mode=RUN chunks=8" in done.stdout


def test_a_sweep_a_folder_of_runs_or_a_run_by_its_id_is_drawn(outputs, tmp_path, monkeypatch, capsys):
    assert sweep.main([str(outputs / "sweeps"), "--report", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "sweep-2026-01-02_config.csv")
    names = [f"{name} {chunks}" for name, chunks in zip(table["schedule.name"], table["chunks"], strict=True)]
    assert names == ["1f1b 2", "1f1b 4", "gpipe 2", "gpipe 4"]
    assert (table["launches"] == 1).all()
    assert sweep.main([str(outputs / "runs"), "--report", str(tmp_path)]) == 0
    assert (pd.read_csv(tmp_path / "sweep-runs.csv")["launches"] == 2).all()
    monkeypatch.setattr(timeline, "OUTPUTS", outputs)
    [run, *_] = sorted(path.name for path in (outputs / "runs").iterdir())
    capsys.readouterr()
    assert timeline.main([run, "--report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{run}, attempt-1: last measured step")
