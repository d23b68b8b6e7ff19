"""A sweep that is typed again goes on where it stopped; of two processes one runs each point."""

import csv
import os
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from user import SMALL, begin, microp, ran, read, until

from microp.config import job_of
from microp.records import hold

WORDS = ["-m", "chunks=2,3,4", *SMALL, "tracking=disabled", "comms=threads"]
LONG = ["steps=40", "device=emulated", "device.forward_ms=10", "device.backward_ms=10"]  # seconds, on any machine


def attempts(folder: Path) -> list[str]:
    """As `gpipe-m2/attempt-1`, without the hash."""
    found = (folder / "outputs" / "runs").glob("*/attempt-*")
    return sorted(f"{path.parent.name.split('-k')[0]}/{path.name}" for path in found)


def last_sweep(folder: Path) -> Path:
    return max((folder / "outputs" / "sweeps").iterdir(), key=lambda path: path.stat().st_mtime)


def statuses(folder: Path) -> list[str]:
    """What the last sweep's table says of its points."""
    return [row["status"] for row in csv.DictReader((last_sweep(folder) / "table.csv").open())]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of two points that has been run, and a point of it again alone."""
    folder = tmp_path_factory.mktemp("swept")
    for words in (["-m", "chunks=2,3", *WORDS[2:]], ["chunks=3", *WORDS[2:]]):
        done = ran(*words, folder=folder)
        assert "finished already" not in done.stderr
    again = [f"gpipe-{attempt}" for attempt in ("m2/attempt-1", "m3/attempt-1", "m3/attempt-2")]
    assert attempts(folder) == again  # alone it always runs
    return folder


def copied(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder / "outputs", tmp_path / "outputs")
    time.sleep(max(0.0, 1.01 - (time.time() - last_sweep(folder).stat().st_mtime)))  # a folder of its own second
    return tmp_path


def test_what_is_finished_is_shown_and_not_run_again(swept, tmp_path):
    folder = copied(swept, tmp_path)
    done = ran(*WORDS, folder=folder)
    assert "2 of 3 points are finished already" in done.stderr
    assert "gpipe-m4" in done.stderr  # the one that was run, in the progress
    assert "gpipe-m2" not in done.stderr
    assert done.stdout.startswith("3 finished, the same in all: ")
    assert attempts(folder) == [*attempts(swept), "gpipe-m4/attempt-1"]
    assert statuses(folder) == ["finished"] * 3
    assert len(read(last_sweep(folder) / "plan.json")["points"]) == 3


def test_what_failed_is_run_again_and_with_again_everything(swept, tmp_path):
    folder = copied(swept, tmp_path)
    [status] = (folder / "outputs" / "runs").glob("gpipe-m2-*/attempt-1/status.json")
    status.write_text(status.read_text().replace('"finished"', '"failed"'))
    done = ran("-m", "chunks=2,3", *WORDS[2:], folder=folder)
    assert "1 of 2 points are finished already" in done.stderr
    assert attempts(folder) == sorted([*attempts(swept), "gpipe-m2/attempt-2"])
    done = ran("-m", "chunks=2,3", *WORDS[2:], "again=true", folder=folder)
    assert "finished already" not in done.stderr
    more = ["gpipe-m2/attempt-3", "gpipe-m3/attempt-3", "gpipe-m2/attempt-2"]
    assert attempts(folder) == sorted([*attempts(swept), *more])


def test_ctrl_c_and_typed_again(tmp_path):
    """Within the second point; emulated steps last long enough to be hit, however busy the machine is."""
    words = [*WORDS, *LONG]
    stopped = begin(*words, folder=tmp_path)
    until(lambda: [p for p in tmp_path.glob("outputs/runs/gpipe-m3-*/*/steps.rank0.jsonl") if p.stat().st_size > 2000])
    stopped.send_signal(signal.SIGINT)
    table, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 130
    assert "1 finished, 1 interrupted, the same in all: schedule=gpipe" in table
    assert "Traceback" not in errors
    assert statuses(tmp_path) == ["finished", "interrupted", "planned"]
    [summary] = (tmp_path / "outputs" / "runs").glob("gpipe-m3-*/attempt-1/summary.json")
    assert read(summary)["steps"] > 0
    done = ran(*words, folder=tmp_path)
    assert "1 of 3 points are finished already" in done.stderr
    assert "gpipe-m2/attempt-2" not in attempts(tmp_path)
    assert statuses(tmp_path) == ["finished"] * 3


def test_two_sweeps_at_once_run_each_point_once_and_have_a_folder_each(tmp_path):
    words = ["-m", "chunks=2,3", *WORDS[2:], *LONG]
    other = begin(*words, folder=tmp_path)
    until(lambda: [*tmp_path.glob("outputs/runs/gpipe-m2-*/attempt-1")], other.said)
    assert "is being run by process" in ran(*words, folder=tmp_path).stderr
    assert other.wait(300) == 0, other.said()
    assert attempts(tmp_path) == ["gpipe-m2/attempt-1", "gpipe-m3/attempt-1"]
    tables = [list(csv.DictReader(path.open())) for path in (tmp_path / "outputs" / "sweeps").glob("*/table.csv")]
    assert len(tables) == 2
    for table in tables:
        assert [(row["chunks"], row["status"]) for row in table] == [("2", "finished"), ("3", "finished")]


def test_a_single_run_is_told_who_runs_it(tmp_path):
    run = tmp_path / "outputs" / "runs" / job_of("chunks=2", *WORDS[2:]).run_id
    with hold(run):
        done = microp("chunks=2", *WORDS[2:], folder=tmp_path)
    assert done.returncode == 1
    [line] = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert line.startswith(f"error: {run.name} is being run by process {os.getpid()} on ")
    assert line.endswith(f"wait until it has ended, or stop it (it holds outputs/runs/{run.name}/lock)")
    assert list(run.iterdir()) == []  # nothing was started


@pytest.mark.skipif(
    find_spec("joblib") is None, reason="hydra-joblib-launcher is not installed: pip install 'microp[joblib]'"
)
def test_ranks_start_from_a_worker_of_joblib(tmp_path):
    words = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "chunks=2,3", "parallel=true"]
    done = ran(*words, *SMALL, "tracking=disabled", folder=tmp_path)
    assert "2 finished" in done.stdout
