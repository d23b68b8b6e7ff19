"""Faults of a rank, injected at each kind of place on both transports: the rank is named, all ranks end, rows stay."""

from __future__ import annotations

import gc
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import small_job
from ranks import SIGNALS, Fault, Unreadable

from microp.comms.processes import is_alive
from microp.model import Stage
from microp.schedule.builders import one_f_one_b, zb_h1
from microp.settings import EngineSettings
from microp.store import read_rows
from microp.worker import RankError, launch, launch_ranks, run_threads, watch
from microp.worker.failure import NO_SERVER
from microp.worker.watch import Exits

PLACES = {
    "forward": "1F1",
    "backward": "1B1",
    "optimizer": "the optimizer",
}
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


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize(
    ("how", "where"),
    [
        *(("kill", where) for where in PLACES),
        *(("raise", where) for where in PLACES),
        ("stop", "backward"),
        ("end", "backward"),
        ("interrupt", "forward"),
        ("memory", "forward"),
        ("exit", "backward"),
        ("leave", "forward"),
        ("leave", "optimizer"),
        ("quit", "backward"),
        ("quit", "optimizer"),
    ],
)
def test_a_fault_names_rank_place_and_step(how, where, backend, tmp_path):
    error, took = fail(Fault(how, where), tmp_path, backend=backend)
    place = PLACES[where]
    said = {
        "kill": f"rank 1 was killed by SIGKILL in {place}, step 2",
        "stop": f"rank 1 was stopped by a signal in {place}, step 2",
        "end": f"rank 1 was killed by SIGTERM in {place}, step 2",
        "interrupt": f"rank 1 was killed by SIGINT in {place}, step 2",
        "raise": f"rank 1, {'action ' * (where != 'optimizer')}{place}, step 2: the layer is broken",
        "memory": f"rank 1, {'action ' * (where != 'optimizer')}{place}, step 2: out of memory",
        "exit": f"rank 1 ended with exit code 3 in {place}, step 2",
        "leave": f"rank 1 ended with exit code 0 in {place}, step 2",
        "quit": f"rank 1, {'action ' * (where != 'optimizer')}{place}, step 2: SystemExit: 0",
    }
    assert str(error) == said[how]
    assert took < 60  # far below the time-out, on a busy machine too
    assert [row["step"] for row in read_rows(tmp_path, 1)] == [0, 1]  # no row is lost


@pytest.mark.parametrize(("how", "where"), [("kill", "backward"), ("raise", "optimizer")])
def test_a_fault_over_tcp(how, where, tmp_path):
    test_a_fault_names_rank_place_and_step(how, where, "tcp", tmp_path)


@pytest.mark.parametrize(("where", "backend"), [("forward", "shm"), ("backward", "gloo"), ("optimizer", "shm")])
def test_a_rank_that_hangs_is_named_by_those_that_wait(where, backend, whole, tmp_path):
    """With `--whole` over the other transport too."""
    for own in ("shm", "gloo") if whole else (backend,):
        attempt = tmp_path / own
        attempt.mkdir()
        error, took = fail(Fault("hang", where), attempt, backend=own, timeout_s=3)
        message = str(error)
        assert message.startswith("rank 0")
        assert f"rank 1, which has been in {PLACES[where]} for " in message
        assert message.endswith("(step 2)")
        assert took < 60
        assert "in _happen" in error.log.read_text()  # the log of the rank that hung says where it was


def test_a_fault_of_the_constructor(tmp_path):
    error, _ = fail(Fault("raise", "Trainer"), tmp_path)
    assert str(error) == "rank 1, its set-up, step 0: the layer is broken"


def test_a_constructor_that_hangs_is_named(tmp_path):
    error, _ = fail(Fault("hang", "Trainer"), tmp_path, timeout_s=3)
    said = "rank 0 waited 3 s at the connection to the other ranks for rank 1, which has been in its set-up for "
    assert str(error).startswith(said)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", r"rank 1, action 1F0, step 2: the layer is broken"),
        ("hang", r"rank 0 waited 3 s at torch's runtime for rank 1, which has been in 1F0 for \d+\.\d s \(step 2\)"),
    ],
)
def test_torchs_runtime_names_them_as_well(how, said, tmp_path):
    torch = EngineSettings("torch", False)
    error, _ = fail(Fault(how, "torch"), tmp_path, backend="gloo", engine=torch, batch_size=8, timeout_s=3)
    assert re.fullmatch(said, str(error))


def test_a_weight_gradient_is_named(tmp_path):
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL in 1W1, step 2"):
        launch_ranks(small_job(schedule=zb_h1(2, 4)), tmp_path, 1, Fault("kill", "weight_gradient"))


@pytest.mark.parametrize("how", ["kill", "end", "interrupt"])
def test_a_killed_rank_is_named_though_torch_names_a_victim(how, tmp_path, monkeypatch):
    """torch's launcher looks so seldom here that it finds all ranks dead, and tells the first one only."""
    launch_config = launch._launch_config

    def slow(*given):
        config = launch_config(*given)
        config.monitor_interval = 1.0
        return config

    monkeypatch.setattr(launch, "_launch_config", slow)
    job = small_job(schedule=one_f_one_b(2, 4), steps=50, backend="gloo")
    with pytest.raises(RankError, match=f"rank 1 was killed by {SIGNALS[how].name} in 1B1, step 2"):
        launch_ranks(job, tmp_path, SHUTDOWN_S, Fault(how, "backward"))


def test_a_rank_that_was_killed_before_it_was_told_to_end_is_the_guilty_one(monkeypatch):
    """The process from which ranks are forked tells an exit code late; a peer over TCP fails before that."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    rank = SimpleNamespace(pid=child.pid, terminate=lambda: None)
    monkeypatch.setattr(watch, "get_spawning_popen", lambda: rank)
    told, killed = Exits(), Exits()
    told.__reduce__()
    rank.terminate()
    assert told.asked == {0}
    rank.terminate = lambda: None
    killed.__reduce__()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and nobody has asked for its code
    rank.terminate()
    assert killed.asked == set()
    child.wait()


@pytest.mark.parametrize(("ranks", "has_forked"), [(1, False), (1, True), (2, True)])
def test_a_forkserver_that_is_killed_in_mid_launch_is_named(ranks, has_forked, tmp_path, monkeypatch):
    """It dies before the second rank has started, or after all have; the next launch starts another one, not this."""
    folder = tmp_path / ("t" * 120)  # longer than the name of a socket may be
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    connect, started = forkserver.connect_to_new_process, []

    def killing(descriptors):
        found = connect(descriptors)
        started.append(found)
        if len(started) == ranks:
            server = vars(forkserver)["_forkserver"]._forkserver_pid
            if has_forked:
                select.select([found[0]], [], [])
            os.kill(server, signal.SIGKILL)
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
        return found

    monkeypatch.setattr(forkserver, "connect_to_new_process", killing)
    with pytest.raises(RankError, match=f"^{NO_SERVER}$"):
        launch_ranks(small_job(steps=50), tmp_path, SHUTDOWN_S)
    assert list(folder.iterdir()) == []
    monkeypatch.undo()
    launch_ranks(small_job(steps=1), tmp_path, SHUTDOWN_S)


def test_a_rank_that_fails_before_it_has_a_log_prints_nothing(tmp_path, capfd):
    with pytest.raises(
        RankError, match="rank [01] ended with exit code 1 before it had started: ValueError: .* cannot be read"
    ):
        launch_ranks(small_job(), tmp_path, SHUTDOWN_S, Unreadable())
    assert capfd.readouterr() == ("", "")


def test_a_thread_that_hangs_does_not_keep_the_command(tmp_path, monkeypatch):
    """The other ranks give up after the time-out, and it is left behind after `shutdown_s`."""
    forward, released = Stage.forward, threading.Event()

    def hanging(stage, microbatch, x):
        if x is not None and microbatch == 1:
            released.wait(60)
        return forward(stage, microbatch, x)

    monkeypatch.setattr(Stage, "forward", hanging)
    said = "rank 0 waited 1 s for 1B0 from rank 1, which has been in 1F1 for "
    before = threading.active_count()
    with pytest.raises(RankError, match=said):
        run_threads(small_job(timeout_s=1, backend="threads"), tmp_path, 1)
    assert threading.active_count() == before + 1
    released.set()
    end = time.monotonic() + 60
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
