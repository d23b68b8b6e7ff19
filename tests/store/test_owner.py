"""A run whose process was killed is told from one that runs, also if its pid was given again or it ran elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from stored import store_run, write_steps

from microp.store import KILLED, load_runs, load_steps, read_status, this_process, write_json
from microp.store.owner import has_gone

SLEEPS = "import time; from microp.store import this_process; print(this_process(), flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def killed():
    """What a process that was killed with -9 wrote about itself while it ran."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    owner = eval(process.stdout.readline())
    assert owner["pid"] == process.pid
    assert has_gone(owner) is False
    process.send_signal(signal.SIGKILL)
    process.wait()
    return owner


def test_this_process_runs():
    assert this_process()["pid"] == os.getpid()
    assert has_gone(this_process()) is False


def test_a_killed_process_has_gone(killed):
    assert has_gone(killed) is True


def test_a_zombie_has_gone():
    process = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    owner = eval(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has waited for it
    assert has_gone(owner) is True
    process.wait()


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"process_started": 1}, True),  # the pid was given to another process
        ({"boot": "an earlier one"}, True),
        ({"host": "another", "boot": "its own"}, None),
        ({"host": "another", "pid": 10**7}, None),
        ({"namespace": "pid:[1]"}, None),  # another container of this host
        ({"pid": 10**7}, True),
    ],
)
def test_what_tells_processes_apart(change, gone):
    assert has_gone({**this_process(), **change}) is gone


def test_an_older_record_does_not_tell():
    assert has_gone({"pid": 10**7}) is None


def test_a_killed_attempt_is_read_as_killed_and_its_rows_are_kept(killed, tmp_path):
    run = store_run(tmp_path, "schedule=gpipe", "chunks=4", status="running")
    attempt = tmp_path / "runs" / run / "attempt-1"
    write_json(attempt / "status.json", {"status": "running", "started": 1.0, **killed})
    write_steps(attempt, 2, steps=3)
    with (attempt / "steps.rank1.jsonl").open("a") as file:
        file.write('{"step": 3, "pha')  # the kill came in the middle of a row
    assert read_status(attempt)["status"] == KILLED
    row = load_runs(tmp_path).iloc[0]
    assert (row["status"], row["steps"]) == ("killed", 3)
    assert (
        row["message"] == f"process {killed['pid']}, which ran it, has gone and recorded no end: run its command again"
    )
    assert load_steps(attempt).groupby("rank")["step"].max().tolist() == [2, 2]
    write_json(attempt / "status.json", {"status": "running", "started": 1.0, **this_process()})
    assert load_runs(tmp_path)["status"].tolist() == ["running"]
    write_json(attempt / "status.json", {"status": "running", "started": 1.0, **killed, "host": "elsewhere"})
    row = load_runs(tmp_path).iloc[0]
    assert row["status"] == "running"
    assert row["message"].startswith("it was started on elsewhere: whether it still runs cannot be told")
