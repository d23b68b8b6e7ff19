"""Only one process holds the lock of a folder, others learn which one, and no crash leaves it behind."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from user import ROOT

from microp.store import LockedError, hold, lock, owner_of

HOLDER = """
import sys, time
from pathlib import Path
from microp.store import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    run = tmp_path / "runs" / "gpipe-m4"
    assert owner_of(run) is None
    assert not run.exists()  # asking writes nothing
    with hold(run) as locked:
        assert locked
        owner = owner_of(run)
        assert owner is not None
        assert (owner.pid, owner.host) == (os.getpid(), socket.gethostname())
        with pytest.raises(LockedError) as error, hold(run):
            pass
        for word in ("gpipe-m4 is being run by process", str(os.getpid()), socket.gethostname(), str(run / "lock")):
            assert word in str(error.value)
    assert owner_of(run) is None
    assert list(run.iterdir()) == []
    with hold(run) as locked:
        assert locked


def test_a_killed_process_leaves_no_lock(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        owner = owner_of(tmp_path)
        assert owner is not None
        assert owner.pid == process.pid
        process.send_signal(signal.SIGKILL)
    assert owner_of(tmp_path) is None
    assert (tmp_path / "lock").read_text()  # what the file says does not count
    with hold(tmp_path) as locked:
        assert locked


def test_who_waits_is_told_once_for_whom_and_gets_it_then(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "POLL_S", 0.01)
    told, release, got = [], threading.Event(), threading.Event()

    def wait() -> None:
        def tell(owner) -> None:
            told.append(owner.pid)
            release.set()

        with hold(tmp_path, waiting=tell):
            got.set()

    with hold(tmp_path):
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert release.wait(20)
        assert not got.is_set()
    waiter.join(20)
    assert got.is_set()
    assert told == [os.getpid()]


def test_who_gets_the_lock_of_a_deleted_file_locks_the_new_one(tmp_path, monkeypatch):
    """The first holder ends and deletes the file between the second one's opening and locking."""
    first, real = hold(tmp_path), lock._try
    first.__enter__()

    def ended_first(file) -> bool | None:
        monkeypatch.setattr(lock, "_try", real)
        first.__exit__(None, None, None)
        return real(file)

    monkeypatch.setattr(lock, "_try", ended_first)
    with hold(tmp_path), pytest.raises(LockedError), hold(tmp_path):
        pass


def test_a_file_system_without_locks_does_not_stop_anyone(tmp_path, monkeypatch):
    def flock(*_) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with hold(tmp_path) as locked:
        assert not locked
    assert owner_of(tmp_path) is None


def test_a_file_system_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(OSError, match="runs"), hold(tmp_path / "runs" / "gpipe-m4"):
        pass
