"""The W&B mirror: what was logged is read back from the offline files and equals the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import small_job

from microp import tracking
from microp.app import attempt as app_attempt
from microp.app import compose_config, read_config
from microp.settings import TrackingSettings
from microp.store import mirror, new_attempt, read_rows, read_spans, summarise, take_agent, wandb_mirror, write_json
from microp.worker import run_threads

OFFLINE = TrackingSettings("offline", "microp", None, ["a-tag"])


@pytest.fixture
def attempt(tmp_path):
    """A finished attempt, as run_point leaves it before the mirroring."""
    job = small_job()
    folder = new_attempt(tmp_path / "runs", job.run_id)
    run_threads(job, folder)
    (folder / "config.yaml").write_text(
        "ranks: 2\nmodel: {name: mlp}\ntracking: {mode: offline, project: microp, entity: null, tags: [a-tag]}\n"
    )
    write_json(folder / "env.json", {"experiment": "an_experiment", "wandb_agent": {}})
    write_json(folder / "status.json", {"uid": "0123abcd", "status": "finished", "started": 1.0, "message": None})
    write_json(folder / "summary.json", summarise(job, folder, "finished"))
    return folder


def inspect(folder: Path, name: str) -> list[dict]:
    """The records of one offline run, as W&B's own reader gives them."""
    [file] = folder.glob(f"wandb/offline-run-*-{name}/*.wandb")
    program = Path(sys.executable).parent / "wandb"
    done = subprocess.run([program, "leet", "inspect", "--json", file], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_what_was_logged_equals_the_rows(attempt, tmp_path):
    mirror(attempt, OFFLINE, tmp_path)
    assert sorted(path.name.split("-", 3)[3] for path in (tmp_path / "wandb").glob("offline-run-*")) == [
        "0123abcd-rank0",
        "0123abcd-rank1",
        "0123abcd-summary",
    ]
    for rank in range(2):
        records = inspect(tmp_path, f"0123abcd-rank{rank}")
        logged = [record["history"]["item"] for record in records if "history" in record]
        for row, item in zip(read_rows(attempt, rank), logged, strict=True):
            times = {f"action_ms.{name}": value for name, value in row.pop("action_ms").items()}
            assert {key: value for key, value in item.items() if not key.startswith("_")} == row | times
        text = json.dumps(records)
        for word in ("test/attempt-1", '"rank"', "a-tag"):
            assert word in text


def test_the_summary_run_has_steps_tables_and_the_timeline(attempt, tmp_path):
    mirror(attempt, OFFLINE, tmp_path)
    records = inspect(tmp_path, "0123abcd-summary")
    logged = [record["history"]["item"] for record in records if "history" in record]
    rows = [read_rows(attempt, rank) for rank in range(2)]
    for item, ranks in zip(logged, zip(*rows, strict=True), strict=False):
        assert item["step_ms"] == max(row["step_ms"] for row in ranks)
        assert item["loss"] == ranks[1]["loss"]
    timeline, tables = logged[-2:]
    assert (timeline["timeline._type"], timeline["timeline.format"]) == ("image-file", "png")
    [folder] = tmp_path.glob("wandb/offline-run-*-summary/files")
    assert (folder / timeline["timeline.path"]).read_bytes().startswith(b"\x89PNG")
    steps, spans = (json.loads((folder / tables[f"{name}.path"]).read_text()) for name in ("steps", "spans"))
    expected = [[row.get(key) for key in steps["columns"]] for own in rows for row in own]
    assert steps["data"] == expected
    assert {"rank", "step", "loss", "step_ms", "peak_memory_mib"} <= set(steps["columns"])
    updates = [record["summary"]["update"] for record in records if "summary" in record]
    assert any(json.loads((attempt / "summary.json").read_text()).items() <= update.items() for update in updates)
    assert spans["columns"] == [
        *("rank", "op", "stage", "microbatch"),
        *("wait_start_ms", "ready_ms", "start_ms", "end_ms"),
    ]
    found = list(read_spans(attempt))
    begin = min(span.start for span in found)
    assert spans["data"] == [[*span[:4], *((moment - begin) / 1e6 for moment in span[4:])] for span in found]


def test_steps_are_the_axis_and_the_experiment_is_a_tag(attempt, tmp_path):
    mirror(attempt, OFFLINE, tmp_path)
    for name in ("rank0", "summary"):
        records = inspect(tmp_path, f"0123abcd-{name}")
        metrics = [record["metric"] for record in records if "metric" in record]
        assert any(metric.get("glob_name") == "*" and metric["step_metric"] == "step" for metric in metrics), metrics
        [run] = [record["run"] for record in records if "run" in record]
        assert set(run["tags"]) == {"a-tag", "an_experiment"}


def test_only_the_summary_run_is_the_agents(attempt, tmp_path, monkeypatch):
    """As `wandb agent` starts a process; `run_point` takes it down in env.json."""
    for key, value in {"RUN_ID": "agentrun", "SWEEP_ID": "asweep", "PROJECT": "theirs"}.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    agent = take_agent()
    assert agent == {"run_id": "agentrun", "sweep_id": "asweep", "project": "theirs"}
    assert take_agent() == {}  # the next attempt of this process has ids of its own
    write_json(attempt / "env.json", {"experiment": None, "wandb_agent": agent})
    monkeypatch.setenv("WANDB_RUN_ID", "somebody-elses")  # for one that is mirrored later
    mirror(attempt, OFFLINE, tmp_path)
    names = sorted(path.name.split("-", 3)[3] for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert names == ["0123abcd-rank0", "0123abcd-rank1", "agentrun"]
    for name in names:
        [run] = [record["run"] for record in inspect(tmp_path, name) if "run" in record]
        assert run.get("sweep_id", "") == ("asweep" if name == "agentrun" else "")
        assert run["project"] == "theirs"


def test_mirroring_again_makes_no_duplicates(attempt, tmp_path):
    mirror(attempt, OFFLINE, tmp_path)
    before = sorted((tmp_path / "wandb").glob("offline-run-*"))
    mirror(attempt, OFFLINE, tmp_path)
    assert sorted((tmp_path / "wandb").glob("offline-run-*")) == before


def test_what_failed_half_way_is_made_whole_later(attempt, tmp_path, monkeypatch, capsys):
    real, calls = wandb_mirror._mirror_one, []

    def failing(*arguments):
        calls.append(arguments[3])
        if len(calls) == 2:
            real(*arguments)  # it is on disk, but W&B says it failed
            raise ConnectionError("W&B is away")
        real(*arguments)

    monkeypatch.setattr(wandb_mirror, "_mirror_one", failing)
    with pytest.raises(ConnectionError):
        mirror(attempt, OFFLINE, tmp_path)
    monkeypatch.setattr(wandb_mirror, "_mirror_one", real)
    assert tracking.main([str(tmp_path)]) == 0
    assert "mirrored" in capsys.readouterr().out
    names = sorted(path.name.rsplit("-", 1)[1] for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert names == ["rank0", "rank1", "summary"]


def test_a_run_is_finished_though_w_and_b_fails(tmp_path, monkeypatch, capsys):
    config = read_config(compose_config(f"output_dir={tmp_path}"))

    def broken(*_):
        raise OSError("no room for W&B")

    monkeypatch.setattr(app_attempt, "mirror", broken)
    job = small_job()
    with app_attempt.Attempt(config, job, None) as folder:
        run_threads(job, folder)
    assert folder == tmp_path / "runs" / job.run_id / "attempt-1"
    assert json.loads((folder / "status.json").read_text())["status"] == "finished"
    assert "python -m microp.tracking" in " ".join(capsys.readouterr().err.split())


def test_disabled_writes_nothing(attempt, tmp_path):
    mirror(attempt, TrackingSettings("disabled", "microp", None, []), tmp_path)
    assert not (tmp_path / "wandb").exists()


def test_online_needs_a_key(monkeypatch, tmp_path):
    online = TrackingSettings("online", "microp", None, [])
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert "needs a W&B key" in online.problems()[0]
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0123\n")
    (tmp_path / "netrc").chmod(0o600)
    assert online.problems() == []
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert online.problems()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert online.problems() == []


def test_a_folder_that_is_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        tracking.main([str(tmp_path / "nothing")])
    assert stop.value.code == 2
    assert "is not a folder" in capsys.readouterr().err
