"""The W&B mirror: what was logged is read back from the offline files and equals the rows."""

import json
import shutil
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path
from statistics import median

import pytest
from conftest import small_job
from stored import amend
from user import BIN

from microp import tracking
from microp.config import compose_config, read_config
from microp.config.config import to_yaml
from microp.mirror import mirror, take_agent
from microp.mirror import mirroring as wandb_mirror
from microp.mirror.files import wandb_uid
from microp.records import new_attempt, read_rows, read_spans, summarise, this_process, write_json, write_schedule
from microp.settings import TrackingSettings
from microp.worker.threads import run_threads

OFFLINE = TrackingSettings("offline", "microp", None, None, ["a-tag"], False, False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A finished attempt, as run_point leaves it before the mirroring."""
    job = small_job()
    folder = new_attempt(tmp_path_factory.mktemp("recorded") / "runs", job.run_id)
    (folder / "config.yaml").write_text(to_yaml(read_config(compose_config("tracking.tags=[a-tag]"))))
    machine = {"commit": "0123abc", "packages": {"torch": "2.13.0"}, "processor": "a processor", "cores": 2}
    asked = {"experiment": "an_experiment", "overrides": ["chunks=4"], "wandb_agent": {}}
    write_json(folder / "env.json", {**machine, **asked})
    write_schedule(folder, job.schedule)
    started = time.time()
    run_threads(job, folder)
    write_json(folder / "status.json", {"uid": "0123abcd", "status": "finished", "started": started, "message": None})
    write_json(folder / "summary.json", summarise(job, folder, "finished"))
    return folder


@pytest.fixture
def attempt(recorded, tmp_path):
    return Path(shutil.copytree(recorded, tmp_path / "runs" / "test" / "attempt-1"))


def inspect(folder: Path, name: str) -> list[dict]:
    [file] = folder.glob(f"wandb/offline-run-*-{name}/*.wandb")
    words = [BIN / "wandb", "leet", "inspect", "--json", file]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]


def history(records: list[dict]) -> list[dict]:
    return [record["history"]["item"] for record in records if "history" in record]


def run_of(records: list[dict]) -> dict:
    [run] = [record["run"] for record in records if "run" in record]
    return run


def last_summary(records: list[dict]) -> dict:
    """The summary as W&B shows it: the later update of a key counts."""
    found: dict = {}
    for record in records:
        found |= record.get("summary", {}).get("update", {})
    return found


def made(folder: Path) -> list[str]:
    return sorted(path.name.split("-", 3)[3] for path in folder.glob("wandb/offline-run-*"))


@pytest.fixture(scope="module")
def files(recorded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirrored")
    assert mirror(recorded, OFFLINE, folder) == ["rank0", "rank1", "summary"]
    assert mirror(recorded, OFFLINE, folder) == []  # `made` shows that there are no duplicates
    (recorded / "tracked.json").unlink()
    return folder


@pytest.fixture(scope="module")
def mirrored(files):
    assert made(files) == [f"{name}-0123abcd" for name in ("r0", "r1", "summary")]
    return {name: inspect(files, f"{name}-0123abcd") for name in ("r0", "r1", "summary")}


PEAKS = ("peak_memory_mib", "peak_activation_mib", "in_flight_peak")
NAMES = ("pipeline_ms", "optimizer_ms", "compute_ms", "wait_ms")


@pytest.mark.parametrize("rank", range(2))
def test_the_charts_of_a_rank_are_those_of_measured_steps_and_its_summary_has_medians(mirrored, recorded, rank):
    rows, logged = read_rows(recorded, rank), history(mirrored[f"r{rank}"])
    both = zip(rows, read_rows(recorded, 1 - rank), strict=True)
    slowest = [max(one["step_ms"], other["step_ms"]) for one, other in both]
    assert [row["phase"] for row in rows] == ["warmup", "measured", "measured", "measured", "memory"]
    for row, item, step_ms in zip(rows, logged, slowest, strict=True):
        item = {key: value for key, value in item.items() if not key.startswith("_")}
        assert item.pop("step") == row["step"]
        assert item.pop("loss", None) == row["loss"]
        prefix = "" if row["phase"] == "measured" else f"{row['phase']}/"
        assert (item.pop(f"{prefix}step_ms"), item.pop(f"{prefix}own_step_ms")) == (step_ms, row["step_ms"])
        times = {f"action_ms.{name}": value for name, value in row["action_ms"].items()}
        assert item == ({} if prefix else {name: row[name] for name in NAMES} | times)
    found = last_summary(mirrored[f"r{rank}"])
    measured, [memory] = ([row for row in rows if row["phase"] == phase] for phase in ("measured", "memory"))
    assert found["step_ms"] == json.loads((recorded / "summary.json").read_text())["step_ms"]["median"]
    assert found["own_step_ms"] == median(row["step_ms"] for row in measured)
    assert all(found[name] == median(row[name] for row in measured) for name in NAMES)
    assert found["action_ms"][f"{rank}F"] == median(row["action_ms"][f"{rank}F"] for row in measured)
    assert found["memory/own_step_ms"] == memory["step_ms"]
    assert [found[name] for name in PEAKS] == [memory[name] for name in PEAKS]
    assert found.get("loss") == measured[-1]["loss"]


@pytest.mark.parametrize("name", ["r0", "r1", "summary"])
def test_the_time_of_a_chart_is_the_time_of_its_step(mirrored, recorded, name):
    ranks = (0, 1) if name == "summary" else (int(name[1]),)
    moments = [[row["ended_ns"] for row in read_rows(recorded, rank)] for rank in ranks]
    ends = [max(step) for step in zip(*moments, strict=True)]
    stamps = [item["_timestamp"] for item in history(mirrored[name])][: len(ends)]
    for stamp, end in zip(stamps, ends, strict=True):
        assert stamp - stamps[0] == pytest.approx((end - ends[0]) / 1e9, abs=1e-3)
    started = json.loads((recorded / "status.json").read_text())["started"]
    assert started < stamps[0] < stamps[-1] < time.time()


def test_an_attempt_that_failed_before_its_first_row_is_mirrored(attempt, tmp_path, capsys):
    (attempt / "steps.rank0.jsonl").write_text("")
    for path in (attempt / "steps.rank1.jsonl", *attempt.glob("spans.rank*.jsonl")):
        path.unlink()
    amend(attempt / "status.json", status="failed", message="rank 1 waited 2 s")
    write_json(attempt / "summary.json", summarise(small_job(), attempt, "failed"))
    assert tracking.main([str(tmp_path)]) == 0
    assert "attempt-1: mirrored rank0, summary" in capsys.readouterr().out
    assert made(tmp_path) == ["r0-0123abcd", "summary-0123abcd"]
    summary = last_summary(inspect(tmp_path, "summary-0123abcd"))
    assert (summary["status"], summary["steps"]) == ("failed", 0)


@pytest.mark.parametrize(("name", "role", "job"), [("r0", "rank0", "rank"), ("summary", "summary", "summary")])
def test_a_w_and_b_run_says_what_was_asked_and_on_what_machine(mirrored, recorded, name, role, job):
    run = run_of(mirrored[name])
    assert (run["run_id"], run["display_name"]) == (f"{name}-0123abcd", f"{role} test attempt-1")
    assert (run["run_group"], run["job_type"]) == ("test/attempt-1", job)
    assert set(run["tags"]) == {"a-tag", "an_experiment"}
    metrics = [record["metric"] for record in mirrored[name] if "metric" in record]
    assert any(metric.get("glob_name") == "*" and metric["step_metric"] == "step" for metric in metrics), metrics
    config = run["config"]["update"]
    machine = {"commit": "0123abc", "processor": "a processor", "cores": 2, "packages": {"torch": "2.13.0"}}
    asked = {"chunks": 4, "experiment": "an_experiment", "overrides": ["chunks=4"]}
    where = {"run_id": "test", "attempt": "attempt-1"} | ({"rank": 0} if job == "rank" else {})
    assert config.items() >= (machine | asked | where).items()
    assert ("rank" in config) == (job == "rank")
    started = json.loads((recorded / "status.json").read_text())["started"]
    assert datetime.fromisoformat(config["started"]).timestamp() == pytest.approx(started, abs=1e-3)


def test_the_summary_run_has_scalars_steps_tables_and_the_timeline(mirrored, files, recorded):
    found, summary = last_summary(mirrored["summary"]), json.loads((recorded / "summary.json").read_text())
    assert found["step_ms"] == summary["step_ms"]["median"]
    assert {key: found[f"step_ms_{key}"] for key in ("p10", "p90", "n")}.items() <= summary["step_ms"].items()
    for name in PEAKS:
        one, other = summary[name]
        assert found[name] == {"rank0": one, "rank1": other, "max": max(one, other)}
    assert found["time_ms"]["compute"]["rank1"] == summary["time_ms"]["compute"][1]
    same = ("samples_per_s", "run_id", "status", "bubble", "replayed")
    assert [found[key] for key in same] == [summary[key] for key in same]
    assert found["partition"] == "3 3"
    logged = history(mirrored["summary"])
    rows = [read_rows(recorded, rank) for rank in range(2)]
    for item, ranks in zip(logged, zip(*rows, strict=True), strict=False):
        name = "step_ms" if ranks[0]["phase"] == "measured" else f"{ranks[0]['phase']}/step_ms"
        assert (item[name], item["loss"]) == (max(row["step_ms"] for row in ranks), ranks[1]["loss"])
    shown = logged[-1]
    assert (shown["timeline._type"], shown["timeline.format"]) == ("image-file", "png")
    [folder] = files.glob("wandb/offline-run-*-summary-*/files")
    assert (folder / shown["timeline.path"]).read_bytes().startswith(b"\x89PNG")
    steps, spans = (json.loads((folder / shown[f"{name}.path"]).read_text()) for name in ("steps", "spans"))
    assert steps["data"] == [[row.get(key) for key in steps["columns"]] for own in rows for row in own]
    assert {"rank", "step", "loss", "step_ms", "peak_memory_mib"} <= set(steps["columns"])
    moments = ["wait_start_ms", "ready_ms", "start_ms", "end_ms"]
    assert spans["columns"] == ["rank", "op", "stage", "microbatch", *moments]
    traced = list(read_spans(recorded))
    begin = min(span.start for span in traced)
    assert spans["data"] == [[*span[:4], *((moment - begin) / 1e6 for moment in span[4:])] for span in traced]


def test_only_the_summary_run_is_the_agents(attempt, tmp_path, monkeypatch):
    for key, value in {"RUN_ID": "agentrun", "SWEEP_ID": "asweep", "PROJECT": "theirs"}.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    agent = take_agent()
    assert agent == {"run_id": "agentrun", "sweep_id": "asweep", "project": "theirs"}
    assert take_agent() == {}  # the next attempt of this process has ids of its own
    amend(attempt / "env.json", wandb_agent=agent)
    mirror(attempt, OFFLINE, tmp_path)
    assert made(tmp_path) == ["agentrun", "r0-0123abcd", "r1-0123abcd"]
    for name in made(tmp_path):
        run = run_of(inspect(tmp_path, name))
        assert run.get("sweep_id", "") == ("asweep" if name == "agentrun" else "")
        assert run["project"] == "theirs"


def test_what_failed_half_way_is_made_whole_later(attempt, tmp_path, monkeypatch, capsys):
    real, closed = wandb_mirror.WandbRun.close, []

    def failing(self, failed):
        real(self, failed)  # it is on disk, but W&B says it failed
        closed.append(self.uid)
        if len(closed) == 2:
            raise ConnectionError("W&B is away")

    monkeypatch.setattr(wandb_mirror.WandbRun, "close", failing)
    with pytest.raises(ConnectionError):
        mirror(attempt, OFFLINE, tmp_path)
    assert json.loads((attempt / "tracked.json").read_text()) == {"rank0": "r0-0123abcd"}
    monkeypatch.undo()
    assert tracking.main([str(tmp_path)]) == 0
    assert "attempt-1: mirrored rank1, summary" in capsys.readouterr().out
    assert tracking.main([str(tmp_path)]) == 0
    assert "attempt-1: complete before" in capsys.readouterr().out
    assert made(tmp_path) == ["r0-0123abcd", "r1-0123abcd", "summary-0123abcd"]


@pytest.fixture
def running(attempt, tmp_path):
    """An attempt that has written its first rows, and a function that writes one step more, and at last the end."""
    kept = Path(shutil.copytree(attempt, tmp_path / "kept"))
    lines = {path: path.read_text().splitlines(keepends=True) for path in attempt.glob("steps.rank*.jsonl")}
    for path, rows in lines.items():
        path.write_text(rows.pop(0))
    (attempt / "summary.json").unlink()
    status = json.loads((attempt / "status.json").read_text())
    amend(attempt / "status.json", **this_process(), status="running")

    def go_on() -> None:
        for path, rows in lines.items():
            if rows:
                with path.open("a") as file:
                    file.write(rows[0][:40])  # a reader may come in the middle of a row
                    file.flush()
                    file.write(rows.pop(0)[40:])
        if not any(lines.values()):
            shutil.copy(kept / "summary.json", attempt / "summary.json")
            write_json(attempt / "status.json", status)

    return attempt, go_on


def test_rows_are_logged_while_they_are_written(running, mirrored, recorded, tmp_path, monkeypatch, capsys):
    """And the W&B runs of an attempt that was followed are those of one that was mirrored after its end."""
    attempt, go_on = running
    looks, look = [], wandb_mirror.WandbRun.log_new_rows

    def looked(self):
        look(self)
        looks.append((self.uid, self._run.step))
        if self.uid.startswith("summary"):
            go_on()

    monkeypatch.setattr(wandb_mirror, "POLL_S", 0)
    monkeypatch.setattr(wandb_mirror.WandbRun, "log_new_rows", looked)
    assert tracking.main([str(attempt), "--follow"]) == 0
    assert "attempt-1: mirrored rank0, rank1, summary" in capsys.readouterr().out
    assert list(dict.fromkeys(step for uid, step in looks if uid == "r1-0123abcd")) == [1, 2, 3, 4, 5]
    count = len(read_rows(recorded, 0))
    for name, expected in mirrored.items():
        records = inspect(tmp_path, f"{name}-0123abcd")
        charts, others = (history(each)[:count] for each in (records, expected))
        assert [{**item, "_runtime": 0} for item in charts] == [{**item, "_runtime": 0} for item in others]
        assert last_summary(records)["step_ms"] == last_summary(expected)["step_ms"]


def test_an_attempt_whose_process_has_gone_is_no_longer_followed(running, tmp_path, monkeypatch):
    attempt, _ = running
    monkeypatch.setattr(wandb_mirror, "POLL_S", 0.1)
    following = threading.Thread(target=tracking.main, args=([str(attempt), "--follow"],))
    following.start()
    while not made(tmp_path):
        time.sleep(0.05)
    ended = subprocess.Popen(["true"])
    ended.wait()
    amend(attempt / "status.json", pid=ended.pid)
    following.join(60)
    assert sorted(json.loads((attempt / "tracked.json").read_text())) == ["rank0", "rank1"]
    [code] = [record["exit"]["exit_code"] for record in inspect(tmp_path, "summary-0123abcd") if "exit" in record]
    assert code == 1


def test_an_attempt_without_a_key_or_a_server_does_not_stop_the_others(attempt, tmp_path, monkeypatch, capsys):
    config = (attempt / "config.yaml").read_text()
    shutil.copytree(attempt, attempt.parent / "attempt-2")
    (attempt.parent / "attempt-2" / "config.yaml").write_text(config.replace("mode: offline", "mode: disabled"))
    (attempt / "config.yaml").write_text(config.replace("mode: offline", "mode: online"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert tracking.main([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert (said.err.count("\n"), said.err.endswith("or add --mode offline\n")) == (1, True)
    assert said.out.endswith("attempt-2: disabled\n")
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert tracking.main([str(tmp_path)]) == 1
    assert "http://127.0.0.1:9 cannot be reached (Connection refused): add --mode offline" in capsys.readouterr().err
    assert not (tmp_path / "wandb").exists()


def test_the_id_of_a_w_b_run_begins_with_its_role_and_its_run(attempt, tmp_path):
    folder = Path(shutil.copytree(attempt, tmp_path / "zb_h1-m8-k2-0123cdef" / "attempt-1"))
    assert wandb_uid(folder, "rank1") == "r1-zb_h1-m8-k2-0123abcd"


def test_a_folder_that_is_not_there_and_online_without_a_key(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        tracking.main([str(tmp_path / "nothing")])
    assert "is not a folder" in capsys.readouterr().err
    online, netrc = TrackingSettings("online", "microp", None, None, [], True, False), tmp_path / "netrc"
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(netrc))
    assert "needs a W&B key" in online.problems()[0]
    netrc.write_text("machine api.wandb.ai login user password 0123\n")
    netrc.chmod(0o600)
    assert online.problems() == []
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert online.problems()
