"""The W&B dashboard as a value: built without a server, and every name in it is one that a recorded run has."""

import json
import re
import shutil

import pytest
from stored import amend

from microp import dashboard
from microp.mirror.content import Charts, run_summary
from microp.mirror.dashboard import specification, subject_of
from microp.records import RecordError, attempts, read_rows, read_summary
from microp.results import varied
from microp.system import flatten


@pytest.fixture(scope="module")
def experiment(outputs, tmp_path_factory):
    """A real small sweep over schedules and chunks, recorded as hop_latency."""
    folder = tmp_path_factory.mktemp("dashboard") / "outputs"
    shutil.copytree(outputs / "runs", folder / "runs")
    for attempt in attempts(folder):
        amend(attempt / "env.json", experiment="hop_latency")
    return folder


@pytest.fixture
def subject(experiment):
    return subject_of(experiment, "hop_latency", "team", None, varied=varied)


def strings(value) -> set[str]:
    return set(re.findall(r'"((?:[^"\\]|\\.)*)"', json.dumps(value, ensure_ascii=False)))


def panels(value):
    if isinstance(value, dict) and "viewType" in value and "config" in value:
        yield value["viewType"], value["config"]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from panels(each)


def test_it_is_about_what_the_runs_varied(subject, experiment):
    assert (subject.numbers, subject.words) == (("chunks",), ("schedule.name",))
    assert (subject.entity, subject.project, subject.tag) == ("team", "microp", "hop_latency")
    for view, job in zip(specification(subject)["workspaces"], ("summary", "rank"), strict=True):
        assert {"jobType", job, "tags", "hop_latency"} <= strings(view)
        assert view["displayName"] == f"microp hop_latency: {'runs' if job == 'summary' else 'ranks'}"


def test_every_name_in_it_is_in_a_recorded_run(subject, experiment):
    spec = specification(subject)
    attempt = attempts(experiment)[0]
    texts = strings(spec)
    keys = {re.sub(r"^config[.:]", "", text).replace(".value", "", 1) for text in texts if re.match("config[.:]", text)}
    assert keys == {"chunks", "schedule.name"}
    assert keys <= set(flatten(Charts(attempt).run_config(None)))
    named = {re.sub("^summary(_metrics)?[.:]", "", text) for text in texts if re.match("summary(_metrics)?[.:]", text)}
    assert {"step_ms", "bubble.measured", "replayed.bubble", "peak_memory_mib.max"} <= named
    assert named <= set(flatten(run_summary(read_summary(attempt))))
    found = list(panels(spec))
    lines = {name for kind, config in found if kind == "Run History Line Plot" for name in config["metrics"]}
    assert {"wait_ms", "compute_ms"} <= lines
    logged = {key for rank in (0, 1) for row in read_rows(attempt, rank) for key in Charts(attempt).of_rank(row, ())}
    assert lines | {"step"} <= logged
    assert {config["xAxis"] for kind, config in found if kind == "Run History Line Plot"} == {"step"}
    bars = {name for kind, config in found if kind == "Bar Chart" for name in config["metrics"]}
    assert "step_ms" in bars
    assert bars <= set(flatten(run_summary(read_summary(attempt))))
    media = {name for kind, config in found if kind == "Media Browser" for name in config["mediaKeys"]}
    assert media == {"timeline"}  # which the summary run has, as `test_wandb_mirror` reads back


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    def run(*words: str):
        code = dashboard.main([*words])
        return code, capsys.readouterr()

    return run


def test_it_can_be_printed_without_a_server(command, experiment):
    code, said = command("hop_latency_quick", f"--outputs={experiment}", "--print", "--entity=team")
    assert code == 0
    assert json.loads(said.out)["workspaces"][0]["displayName"] == "microp hop_latency: runs"
    assert "runs: What was asked: ScatterPlot: step time, ms (median) over chunks" in said.err.splitlines()
    assert said.err.splitlines()[-1] == "ranks: Ranks, step by step: LinePlot: loss"


def test_without_a_key_a_server_the_extra_or_runs_it_is_one_error(command, experiment, tmp_path, monkeypatch):
    code, said = command("hop_latency", f"--outputs={experiment}")
    assert (code, said.err.count("\n"), "needs a W&B key" in said.err) == (2, 1, True)
    for words in (["--print"], []):
        code, said = command("schedules", f"--outputs={experiment}", *words)
        assert (code, said.err.count("\n")) == (2, 1)
        assert "has no finished runs of schedules: it has hop_latency" in said.err
    with pytest.raises(RecordError, match="has no finished runs: it has no experiments"):
        subject_of(tmp_path, None, None, None, varied=varied)
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    code, said = command("hop_latency", f"--outputs={experiment}")
    assert (code, said.err.count("\n")) == (1, 1)
    assert "W&B's server http://127.0.0.1:9 cannot be reached (Connection refused)" in said.err
    monkeypatch.setattr("microp.dashboard.find_spec", lambda name: None)
    code, said = command("hop_latency", f"--outputs={experiment}", "--print")
    assert (code, said.err.count("\n"), "needs wandb-workspaces" in said.err) == (2, 1, True)
