"""Ranks start, fail and end as they should: real processes, real signals."""

from __future__ import annotations

import importlib
import os
import pickle
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import messages
import pytest
import rank_faults
import user
from conftest import small_job

from microp.comms.processes import is_alive
from microp.model import library_text
from microp.schedule.builders import gpipe, one_f_one_b
from microp.settings import TextSettings
from microp.store import WriteError, read_json, read_rows
from microp.worker import RankError, launch, launch_ranks, run_threads

TESTS = Path(__file__).parents[1]


def test_a_killed_rank_is_named_and_ends_the_others(tmp_path):
    job = small_job(schedule=one_f_one_b(3, 4), steps=50, timeout_s=600)
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 2 was killed by SIGKILL"):
        launch_ranks(job, tmp_path, 3, rank_faults.Fault("kill", "forward"))
    assert time.monotonic() - began < job.timeout_s / 2  # the others do not wait for it
    assert [row["step"] for row in read_rows(tmp_path, 0)] == [0, 1]  # no row is lost


def test_a_failed_action_names_rank_action_and_step(tmp_path):
    job = small_job(schedule=gpipe(2, 4), steps=50)
    expected = "rank 1, action 1F1, step 2: the layer is broken"
    with pytest.raises(RankError, match=expected) as raised:
        launch_ranks(job, tmp_path, 3, rank_faults.Fault("raise", "forward"))
    assert "ValueError: the layer is broken" in raised.value.log.read_text()
    error = read_json(tmp_path / "error.rank1.json")
    assert error["message"] == expected
    assert "ValueError: the layer is broken" in error["traceback"]
    assert [row["step"] for row in read_rows(tmp_path, 1)] == [0, 1]


def test_a_rank_that_does_not_answer(tmp_path):
    results = launch_ranks(small_job(timeout_s=1), tmp_path, 3, rank_faults.never_send)
    said = r"rank 1 waited 1 s for 0F0 from rank 0, which has been in a step for \d\.\d s \(step 0\)"
    assert re.fullmatch(said, results[1])


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


def test_what_the_server_imports_for_it_reads_the_library():
    library_text.cache_clear()
    importlib.reload(import_module("microp.worker.library"))
    assert library_text.cache_info().currsize == 1
    text = b"".join(path.read_bytes() for path in TextSettings("text", None).files())
    assert library_text().numpy().tobytes() == text


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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_parent(how, tmp_path):
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
    parent.send_signal(how)
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


# --- the script that launches --------------------------------------------------------------------


def test_a_lab_s_entry_is_found(tmp_path):
    done = user.microp(folder=tmp_path, program="microp.labs.ddp")
    assert done.returncode == 0, done.stderr
    assert "sums started before the backward ended" in done.stdout


@pytest.mark.parametrize("error", [None, RankError])
def test_the_script_s_module_is_put_back(error):
    main = sys.modules["__main__"]
    with suppress(RankError), launch.main_module_hidden(messages.verbs):
        assert sys.modules["__main__"] is not main
        if error is not None:
            raise error
    assert sys.modules["__main__"] is main
    with launch.main_module_hidden(in_main):
        assert sys.modules["__main__"] is main


def in_main(*_: object) -> None:
    """As if it were the script's."""


in_main.__module__ = "__main__"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to do with freed memory")
def test_a_rank_takes_memory_from_the_system_once(tmp_path):
    [faults] = launch_ranks(small_job(schedule=gpipe(1, 1)), tmp_path, 3, rank_faults.take_memory_again).values()
    assert faults < 4096  # fewer than the pages that are freed and taken again ten times
