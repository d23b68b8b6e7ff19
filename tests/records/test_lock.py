"""Only one process holds the lock of a folder, others learn which one, and a killed process leaves none behind."""

import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from unittest.mock import Mock

import filelock
import pytest
from stored import store_run, write_steps

from microp.records import KILLED, LockedError, WriteError, hold, owner_of, read_status, this_process, write_json
from microp.records.lock import has_gone
from microp.results import load_runs, load_steps

HOLDER = """
import sys, time
from pathlib import Path
from microp.records import hold, this_process
with hold(Path(sys.argv[1])):
    print(this_process(), flush=True)
    time.sleep(600)
"""


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    run = tmp_path / "runs" / "gpipe-m4"
    assert owner_of(run) is None
    assert not run.exists()  # asking writes nothing
    with hold(run):
        assert str(owner_of(run)).startswith(f"process {os.getpid()} on {socket.gethostname()} (since ")
        with pytest.raises(LockedError) as error, hold(run):
            pass
        for word in ("gpipe-m4 is being run by process", str(os.getpid()), socket.gethostname(), str(run / "lock")):
            assert word in str(error.value)
        assert owner_of(run) is not None  # who asked in vain has not wiped it out
    assert owner_of(run) is None
    assert list(run.iterdir()) == []
    with hold(run):
        pass


def test_who_waits_is_told_once_for_whom_and_gets_it_then(tmp_path):
    told = []
    with ExitStack() as other:
        other.enter_context(hold(tmp_path))
        with hold(tmp_path, waiting=lambda owner: (told.append(owner), other.close())):
            assert [owner.split()[1] for owner in told] == [str(os.getpid())]
            with pytest.raises(LockedError), hold(tmp_path):
                pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(filelock.FileLock, "acquire", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(WriteError, match=r"lock cannot be written \(No locks available\)"), hold(tmp_path):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def killed(folder):
    """What a process that was killed with -9 wrote about itself while it ran and held the lock of `folder`."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    owner = eval(process.stdout.readline())
    assert owner["pid"] == process.pid
    assert has_gone(owner) is False
    assert f"process {process.pid} on " in str(owner_of(folder))
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_gone(owner) is True  # it has ended, and nobody has waited for it
    process.wait()
    return owner


def test_a_killed_process_has_gone_and_leaves_no_lock(killed, folder):
    assert has_gone(killed) is True
    assert has_gone(this_process()) is False
    assert owner_of(folder) is None
    assert (folder / "lock").read_text()  # what the file says does not count
    with hold(folder):
        pass


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"process_started": 1}, True),  # the pid was given to another process
        ({"pid": 10**7}, True),
        ({"boot": "an earlier one"}, True),
        ({"host": "another", "boot": "its own", "pid": 10**7}, None),
        ({"namespace": "pid:[1]"}, None),  # another container of this host
    ],
)
def test_what_tells_processes_apart(change, gone):
    assert has_gone({**this_process(), **change}) is gone


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
    said = "which ran it, has gone and recorded no end: run its command again"
    assert row["message"] == f"process {killed['pid']}, {said}"
    assert load_steps(attempt).groupby("rank")["step"].max().tolist() == [2, 2]
    write_json(attempt / "status.json", {"status": "running", "started": 1.0, **this_process()})
    assert load_runs(tmp_path)["status"].tolist() == ["running"]
    write_json(attempt / "status.json", {"status": "running", "started": 1.0, **killed, "host": "elsewhere"})
    row = load_runs(tmp_path).iloc[0]
    assert row["status"] == "running"
    assert row["message"].startswith("it was started on elsewhere: whether it still runs cannot be told")
