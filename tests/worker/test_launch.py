"""Ranks start, fail and end as they should: real processes, real signals."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import rank_faults
from conftest import small_job

from microp.comms.processes import is_alive
from microp.store import WriteError
from microp.worker import RankError, launch_ranks, run_threads

TESTS = Path(__file__).parents[1]


def test_a_rank_that_does_not_answer(tmp_path):
    results = launch_ranks(small_job(timeout_s=1), tmp_path, 3, rank_faults.never_send)
    said = r"rank 1 waited 1 s for 0F0 from rank 0, which has been in a step for \d\.\d s \(step 0\)"
    assert re.fullmatch(said, results[1])


def test_ranks_with_different_jobs_refuse(tmp_path):
    results = launch_ranks(small_job(), tmp_path, 3, rank_faults.different_jobs)
    assert all("different configurations" in message for message in results.values())


def test_a_failed_thread_is_named(tmp_path, monkeypatch):
    from microp.model import Stage

    forward = Stage.forward

    def failing(stage, microbatch, x):
        if x is not None and microbatch == 1:
            raise ValueError("the layer is broken")
        return forward(stage, microbatch, x)

    monkeypatch.setattr(Stage, "forward", failing)
    with pytest.raises(RankError, match="rank 1, action 1F1, step 0: the layer is broken"):
        run_threads(small_job(), tmp_path)


def test_signal_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    launch_ranks(small_job(), tmp_path, 3)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


SCRIPT = """
import pickle
import sys
from functools import partial
from pathlib import Path

import rank_faults
from microp.worker import launch_ranks


def entry(word, job, comms, local_rank, attempt):
    return word, comms.rank, sys.modules[entry.__module__].__name__


def plain(job, comms, local_rank, attempt):
    return entry("plain", job, comms, local_rank, attempt)


if __name__ == "__main__":
    job = pickle.loads(Path("job").read_bytes())
    for each in (plain, partial(entry, "partial")):
        print(sorted(launch_ranks(job, Path.cwd(), 3, each).items()), flush=True)
    launch_ranks(job, Path.cwd(), 3, rank_faults.sleep_on)
"""


def test_ranks_end_with_their_parent(tmp_path):
    """The entries of the parent's first launches are its own: a function, or a part of one.

    Ranks have the script's module under another name, as of any process.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "job").write_bytes(pickle.dumps(small_job()))
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    with (tmp_path / "said").open("w") as said, (tmp_path / "errors").open("w") as errors:
        command = [sys.executable, "script.py"]
        parent = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=said, stderr=errors)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), 300)
    pids = [int(file.read_text()) for file in files]
    assert all(map(is_alive, pids))
    parent.kill()
    parent.wait(30)
    wait_for(lambda: not any(map(is_alive, pids)), 30)
    assert (tmp_path / "said").read_text().splitlines() == [
        str([(rank, (word, rank, "__mp_main__")) for rank in range(2)]) for word in ("plain", "partial")
    ]


def test_too_little_room_for_the_ranks_is_named_before_they_start(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=60, f_frsize=1024, f_files=0, f_favail=0))
    said = (
        rf"^no room in /\S* for {tmp_path}/logs \(64 KiB needed, 60 KiB free\): free some, or choose another output_dir"
    )
    with pytest.raises(WriteError, match=said):
        launch_ranks(small_job(), tmp_path, 3)
    assert list(tmp_path.iterdir()) == []


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)
