"""Faults of a rank, injected at each kind of place on both transports: the rank is named, all ranks end, rows stay."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import small_job
from rank_faults import Fault, Unreadable

from microp.comms.waiting import is_alive
from microp.model import Stage
from microp.records import read_rows
from microp.schedule.builders import one_f_one_b, zb_h1
from microp.settings import EngineSettings
from microp.worker import RankError, launch_ranks
from microp.worker.threads import run_threads

PLACES = {"forward": "1F1", "backward": "1B1", "optimizer": "the optimizer"}
SHUTDOWN_S = 1


def fail(fault: Fault, attempt: Path, **changes) -> tuple[RankError, float]:
    """The failure, and the seconds from the fault until all ranks had ended."""
    job = small_job(schedule=one_f_one_b(2, 4), steps=50, **{"timeout_s": 200, **changes})
    with pytest.raises(RankError) as error:
        launch_ranks(job, attempt, SHUTDOWN_S, fault)
    took = time.time() - float((attempt / "happened").read_text())
    pids = [int(file.read_text()) for file in attempt.glob("pid*")]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    return error.value, took


@pytest.mark.parametrize(
    ("how", "where", "backend"),
    [
        *(("kill", where, "shm") for where in PLACES),
        *(("raise", where, "gloo") for where in PLACES),
        ("kill", "forward", "gloo"),
        ("kill", "backward", "tcp"),
        ("raise", "forward", "shm"),
        ("raise", "optimizer", "tcp"),
        ("end", "backward", "shm"),
        ("interrupt", "forward", "gloo"),
        ("memory", "forward", "shm"),
        ("exit", "backward", "gloo"),
        ("leave", "forward", "shm"),
        ("leave", "optimizer", "gloo"),
        ("quit", "backward", "gloo"),
        ("quit", "optimizer", "shm"),
    ],
)
def test_a_fault_names_rank_place_and_step(how, where, backend, tmp_path):
    error, took = fail(Fault(how, where), tmp_path, backend=backend)
    place = PLACES[where]
    said = {
        "kill": f"rank 1 was killed by SIGKILL in {place}, step 2",
        "end": f"rank 1 was killed by SIGTERM in {place}, step 2",
        "interrupt": f"rank 1 was killed by SIGINT in {place}, step 2",
        "raise": f"rank 1, {'action ' * (where != 'optimizer')}{place}, step 2: the layer is broken",
        "memory": f"rank 1, {'action ' * (where != 'optimizer')}{place}, step 2: out of memory",
        "exit": f"rank 1 ended with exit code 3 in {place}, step 2",
        "leave": f"rank 1 was lost in {place}, step 2, and wrote no error",
        "quit": f"rank 1, {'action ' * (where != 'optimizer')}{place}, step 2: SystemExit: 0",
    }
    assert str(error) == said[how]
    assert took < 60  # far below the time-out, on a busy machine too
    assert [row["step"] for row in read_rows(tmp_path, 1)] == [0, 1]  # no row is lost


@pytest.mark.parametrize(("where", "backend"), [("forward", "shm"), ("backward", "gloo"), ("optimizer", "shm")])
def test_a_rank_that_hangs_is_named_by_those_that_wait(where, backend, whole, tmp_path):
    """With `--whole` over the other transport too."""
    for own in ("shm", "gloo") if whole else (backend,):
        attempt = tmp_path / own
        attempt.mkdir()
        error, took = fail(Fault("hang", where), attempt, backend=own, timeout_s=6)
        message = str(error)
        assert message.startswith("rank 0")
        assert f"rank 1, which has been in {PLACES[where]} for " in message
        assert message.endswith("(step 2)")
        assert took < 60
        assert "in _happen" in error.log.read_text()  # the log of the rank that hung says where it was


def test_a_rank_that_is_stopped_is_named_and_killed(tmp_path):
    error, took = fail(Fault("stop", "backward"), tmp_path, timeout_s=6)
    assert "rank 1, which has been in 1B1 for " in str(error)
    assert took < 25  # torch itself waits for 30 s


def test_a_fault_of_the_constructor(tmp_path):
    error, _ = fail(Fault("raise", "Trainer"), tmp_path)
    assert str(error) == "rank 1, its set-up, step 0: the layer is broken"


def test_a_constructor_that_hangs_is_named(tmp_path):
    error, _ = fail(Fault("hang", "Trainer"), tmp_path, timeout_s=6)
    said = "rank 0 waited 6 s at the connection to the other ranks for rank 1, which has been in its set-up for "
    assert str(error).startswith(said)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", r"rank 1, action 1F0, step 2: the layer is broken"),
        (  # of gloo's transfers one may be told of the time-out, and another only that the connection was closed
            "hang",
            r"rank 0 waited 6 s at torch's runtime for rank 1, which has been in 1F0 for \d+\.\d s \(step 2\)|"
            "rank 1 was lost in 1F0, step 2, and wrote no error",
        ),
    ],
)
def test_torchs_runtime_names_them_as_well(how, said, tmp_path):
    torch = EngineSettings("torch", False)
    error, _ = fail(Fault(how, "torch"), tmp_path, backend="gloo", engine=torch, batch_size=8, timeout_s=6)
    assert re.fullmatch(said, str(error))


@pytest.mark.parametrize(
    ("backend", "where", "changes"),
    [
        ("shm", "forward", {}),
        ("gloo", "optimizer", {}),  # the others are at a barrier
        ("gloo", "torch", {"engine": EngineSettings("torch", False), "batch_size": 8}),
    ],
)
def test_time_in_which_all_ranks_are_stopped_does_not_count(backend, where, changes, tmp_path):
    """After Ctrl-Z and `fg` the slow rank needs some of the time-out that the others have not used."""
    job = small_job(schedule=one_f_one_b(2, 4), steps=4, backend=backend, timeout_s=4, **changes)

    def stop_a_while() -> None:
        while not (tmp_path / "happened").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        pids = [int(file.read_text()) for file in tmp_path.glob("pid*")]
        for number, seconds in ((signal.SIGSTOP, 1.2), (signal.SIGCONT, 0)):  # the launcher, which runs, ends them in 2
            for pid in pids:
                os.kill(pid, number)
            time.sleep(seconds)

    stopping = threading.Thread(target=stop_a_while)
    stopping.start()
    launch_ranks(job, tmp_path, SHUTDOWN_S, Fault("slow", where))
    stopping.join()
    assert len(read_rows(tmp_path, 0)) == 6


def test_a_weight_gradient_is_named(tmp_path):
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL in 1W1, step 2"):
        launch_ranks(small_job(schedule=zb_h1(2, 4)), tmp_path, 1, Fault("kill", "weight_gradient"))


def test_a_rank_that_fails_before_it_has_a_log_is_named(tmp_path):
    with pytest.raises(RankError, match=r"rank [01] ended with exit code 1 before its start"):
        launch_ranks(small_job(), tmp_path, SHUTDOWN_S, Unreadable())


def test_a_thread_that_hangs_does_not_keep_the_command(tmp_path, monkeypatch):
    """The other ranks give up after the time-out, and it is left behind after `shutdown_s`."""
    forward, released = Stage.forward, threading.Event()

    def hanging(stage, microbatch, x):
        if x is not None and microbatch == 1:
            released.wait(60)
        return forward(stage, microbatch, x)

    monkeypatch.setattr(Stage, "forward", hanging)
    said = "rank 0 waited 3 s for 1B0 from rank 1, which has been in 1F1 for "
    before = threading.active_count()
    with pytest.raises(RankError, match=said):
        run_threads(small_job(timeout_s=3, backend="threads"), tmp_path, 1)
    assert threading.active_count() == before + 1
    released.set()
    end = time.monotonic() + 300
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_threads_leave_no_descriptor(tmp_path):
    """Of each point of a sweep one was left until the collector of cycles came to it."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            run_threads(small_job(steps=1, backend="threads"), tmp_path / str(number))
            gc.disable()
        assert descriptors() <= before
    finally:
        gc.enable()
