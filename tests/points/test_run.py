"""The very commands a user types, in a process of their own."""

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from user import BIN, ROOT, SMALL, begin, environment_of, microp, ran, read, torchrun, until

from microp.config import compose_config, read_config
from microp.points import attempt as attempt_module
from microp.points import hydra_app

MIRRORED = ["rank0", "rank1", "summary"]


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    done = ran(*SMALL, "chunks=3", folder=folder, WANDB_MODE="offline")
    [attempt] = (folder / "outputs" / "runs").glob("*/attempt-1")
    return folder, attempt, done


def test_a_run_leaves_what_the_design_says(one_run):
    _, attempt, _ = one_run
    files = {f"{kind}.rank{rank}.jsonl" for kind in ("steps", "spans") for rank in range(2)}
    files |= {f"{name}.json" for name in ("env", "predicted", "status", "summary", "tracked")}
    assert {path.name for path in attempt.iterdir()} == files | {"config.yaml", "schedule.txt", "logs"}
    assert attempt.parent.name.startswith("gpipe-m3-k2-")
    assert read(attempt / "status.json")["status"] == "finished"
    env = read(attempt / "env.json")
    assert {"commit", "packages", "cores", "command"} <= env.keys()
    assert list(env["load"]) == ["start", "end"]
    assert all(load >= 0 for load in env["load"].values())


def test_the_summary_has_what_the_design_names(one_run):
    _, attempt, _ = one_run
    summary = read(attempt / "summary.json")
    expected = {"schema_version": 3, "status": "finished", "schedule": "gpipe", "chunks": 3, "ranks": 2, "replicas": 1}
    expected |= {"partition": [2, 2], "checkpointing": "never", "model": "mlp", "device": "cpu", "comms": "shm"}
    expected |= {"steps": 3, "in_flight_peak": [3, 3]}
    assert expected.items() <= summary.items()
    assert summary["run_id"] == attempt.parent.name
    assert re.fullmatch("[0-9a-f]{12}", summary["question_id"])
    step = summary["step_ms"]
    assert step["n"] == 3
    assert step["p10"] <= step["median"] <= step["p90"]
    assert summary["bubble"]["closed_form"] == pytest.approx(1 / 4)
    assert summary["bubble"].keys() == {"measured", "closed_form"}
    assert all(0 < bubble < 1 for bubble in (summary["replayed"]["bubble"], summary["bubble"]["measured"]))
    assert min(summary["replayed"]["step_ms"], summary["between_steps_ms"]) > 0
    assert summary["samples_per_s"] == pytest.approx(8 / step["median"] * 1e3)
    for key in ("peak_memory_mib", "peak_allocated_mib", "peak_activation_mib"):
        assert len(summary[key]) == 2
        assert min(summary[key]) > 0
    assert summary["peak_allocated_mib"][0] <= summary["peak_memory_mib"][0]
    assert summary["peak_allocated_mib"][1] < summary["peak_memory_mib"][1]  # without the inputs in its mailboxes
    assert summary["loss"].keys() == {"first", "last"}


def test_the_terminal_says_what_was_found_and_what_to_type_next(one_run):
    folder, attempt, done = one_run
    for word in ("schedule", "samples/s", "formula", "gpipe", "0.250", "finished", "wandb leet", "wandb sync"):
        assert word in done.stdout
    assert re.search(r"\nreplayed [\d.]+ ms, bubble 0\.\d+ · measured [\d.]+ ms \(\S+ %\), bubble 0\.\d+", done.stdout)
    assert [line[:8] for line in done.stdout.splitlines() if "|" in line] == ["rank 0 |", "rank 1 |"]
    assert "\x1b" not in done.stdout
    [draw] = [line for line in done.stdout.splitlines() if line.startswith("draw")]
    env, path, python, option, program, *words = draw.removeprefix("draw").split()  # this folder is not the checkout
    assert (env, path) == ("env", f"PYTHONPATH={ROOT}")
    assert ((folder / python).resolve(), option) == ((BIN / "python").resolve(), "-m")
    drawn = ran(*words, folder=folder, program=program)
    assert "rank 1 |" in drawn.stdout
    files = (folder / "outputs" / "report").iterdir()
    assert sorted(path.suffix for path in files) == [".json", ".pdf", ".png", ".svg"]
    assert str(attempt.relative_to(folder)) in draw


def test_a_run_can_be_followed_and_w_and_b_s_environment_counts(tmp_path):
    """Points are followed one by one, and nothing runs after the last one."""
    environment = {"WANDB_MODE": "offline", "WANDB_DIR": "elsewhere", "WANDB_PROJECT": "theirs"}
    done = microp("-m", "seed=1,2", *SMALL, "chunks=2", "tracking.follow=true", folder=tmp_path, **environment)
    assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr
    of_it = f"readlink /proc/[0-9]*/cwd | grep -x {tmp_path}"  # the processes that have this folder
    until(lambda: subprocess.run(["sh", "-c", of_it], capture_output=True).stdout == b"")
    attempt, other = (tmp_path / "outputs" / "runs").glob("*/*")
    assert sorted(read(attempt / "tracked.json")) == sorted(read(other / "tracked.json")) == MIRRORED
    assert len(list((tmp_path / "elsewhere" / "wandb").glob("offline-run-*"))) == 6
    assert "leet elsewhere/wandb" in done.stdout
    assert "project: theirs" in (attempt / "config.yaml").read_text()
    assert read(attempt / "env.json")["overrides"][1:-1] == [*SMALL, "chunks=2"]
    assert "mirrored rank0, rank1, summary" in (attempt / "tracking.log").read_text()


def test_a_sweep(tmp_path):
    typed = [*SMALL, "comms=threads"]
    done = ran("-m", "schedule=gpipe,1f1b", "chunks=1,2", *typed, folder=tmp_path)
    summaries = [read(path) for path in (tmp_path / "outputs" / "runs").glob("*/attempt-1/summary.json")]
    assert len({s["loss"]["last"] for s in summaries if s["chunks"] == 2}) == 1  # the order does not matter
    [sweep] = (tmp_path / "outputs" / "sweeps").iterdir()
    rows = list(csv.DictReader((sweep / "table.csv").open()))
    assert [f"{row['schedule']} {row['chunks']}" for row in rows] == ["gpipe 1", "gpipe 2", "1f1b 1", "1f1b 2"]
    plan = read(sweep / "plan.json")
    assert plan["schema_version"] == 3
    assert [point["run_id"] for point in plan["points"]] == [row["run_id"] for row in rows]
    assert plan["points"][1]["overrides"] == ["schedule=gpipe", "chunks=2", *typed]
    assert {path.name for path in tmp_path.iterdir()} <= {"outputs", ".config", ".cache", ".local"}
    files, answer, draw = done.stdout.splitlines()[-3:]
    assert (files.split()[0], answer.split()[0], draw.split()[0]) == ("files", "answer", "draw")
    assert f"analysis.sweep outputs/sweeps/{sweep.name}" in answer
    best = min(rows, key=lambda row: (row["chunks"] == "1", row["disturbed"] != "", float(row["bubble.measured"])))
    assert best["run_id"] in draw


def test_a_stored_sweep(tmp_path):
    """By its name alone; naming the folder too is the same."""
    for where in ([], ["-cd", str(ROOT / "sweeps")]):
        ran(*where, "-cn", "first", *SMALL, "chunks=2", "comms=threads", folder=tmp_path)
        assert len(list((tmp_path / "outputs" / "runs").glob("*/attempt-1"))) == 2
    plans = [read(path) for path in sorted((tmp_path / "outputs" / "sweeps").glob("*/plan.json"))]
    assert {(plan["name"], plan["experiment"]) for plan in plans} == {("first", "first")}
    assert all(point["run_id"].startswith(("gpipe-m2-k2-", "1f1b-m2-k2-")) for point in plans[0]["points"])
    files = [*(tmp_path / "outputs").glob("**/*.json")]
    assert not [path for path in files if "callbacks" in path.read_text()]  # only what was typed is recorded


@pytest.mark.parametrize("words", ["chunks=2 -m schedule=gpipe", "chunks=2 -cd . schedule=gpipe -cn config"])
def test_options_may_stand_between_keys(words, tmp_path):
    done = ran(*words.split(), "dry_run=true", *SMALL, folder=tmp_path)
    assert "gpipe-m2-k2-" in done.stdout


def test_joining_torchrun(tmp_path):
    done = torchrun(2, *SMALL, "chunks=2", folder=tmp_path, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    [attempt] = (tmp_path / "outputs" / "runs").glob("*/*")
    assert read(attempt / "summary.json")["steps"] == 3
    assert done.stdout.count("finished") == 1
    assert sorted(read(attempt / "tracked.json")) == MIRRORED


@pytest.mark.parametrize(
    ("words", "message"),
    [(["-m", "chunks=2,4"], "use `python -m microp.run -m"), (["ranks=3"], "torchrun started 2 processes")],
)
def test_what_torchrun_cannot_do(words, message, tmp_path, monkeypatch):
    """Of its ranks one says so, before torchrun ends the other."""
    monkeypatch.setattr(hydra_app, "SILENT_S", 0)
    said = ""
    for rank in "01":
        launch = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        done = microp(*words, *SMALL, folder=tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT="29400", **launch)
        assert done.returncode == 2
        said += done.stderr
    assert said.count(message) == 1
    assert not (tmp_path / "outputs").exists()


def test_the_end_of_ranks_that_torchrun_ends_is_recorded(tmp_path):
    """It sends them SIGTERM, because one of them was killed."""
    words = ["--nproc_per_node=2", "-m", "microp.run", *SMALL, "steps=1000000", "tracking=disabled"]
    process = begin(*words, folder=tmp_path, program="torch.distributed.run")
    until(lambda: rows_of(tmp_path, 1) > 0)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)  # torchrun's ranks are what it started last
    process.communicate()
    [attempt] = (tmp_path / "outputs" / "runs").glob("*/attempt-1")
    status = read(attempt / "status.json")
    assert status["status"] == "failed"
    assert re.search("torchrun ended the ranks of this host|lost rank 1", status["message"])


def rows_of(folder: Path, rank: int) -> int:
    """The bytes of the rows that a rank has written."""
    return sum(path.stat().st_size for path in folder.glob(f"outputs/runs/*/*/steps.rank{rank}.jsonl"))


def test_what_is_ignored_when_a_command_begins_stays_ignored_in_it_and_in_its_ranks(tmp_path):
    """SIGHUP after nohup, SIGINT in the background of a script: both go to all processes of a terminal."""
    emulated = ["device=emulated", "device.forward_ms=5", "device.backward_ms=5"]  # two seconds, however busy it is
    words = " ".join([*SMALL, *emulated, "steps=40", "tracking=disabled"])
    command = ["sh", "-c", f"trap '' HUP INT; exec {BIN / 'python'} -m microp.run {words}"]
    where = {"cwd": tmp_path, "env": environment_of(tmp_path, {}), "start_new_session": True}
    process = subprocess.Popen(command, **where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: rows_of(tmp_path, 1) > 0)
    for number in (signal.SIGHUP, signal.SIGINT):
        os.killpg(process.pid, number)
    assert process.poll() is None
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(1)", "see {attempt}/tracking.log"),
        ("import time; time.sleep(60)", "took more than 1 s"),
        (None, "KeyError: '_timestamp'), which is finished and recorded"),
    ],
)
def test_w_and_b_that_fails_or_hangs_is_a_warning(code, why, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attempt_module, "END_S", 1)
    monkeypatch.setattr(attempt_module, "mirror", Mock(side_effect=KeyError("_timestamp")))
    config = read_config(compose_config(f"output_dir={tmp_path}", "tracking=offline"))
    attempt = tmp_path / "runs" / "test" / "attempt-1"
    process = code and subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    attempt_module.mirror_ended(attempt, "finished", config, process)
    assert process is None or process.returncode is not None
    said = " ".join(capsys.readouterr().err.split())
    assert "W&B failed for test/attempt-1 (" in said
    assert why.format(attempt=attempt) in said
    assert f"To mirror it later: python -m microp.tracking {tmp_path}" in said
