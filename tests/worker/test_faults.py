"""Faults of a rank, injected at each kind of place on both transports: the rank is named, all ranks end, rows stay."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import small_job
from rank_faults import Fault, Unreadable, told

from microp.comms.waiting import is_alive
from microp.model import Stage
from microp.records import read_rows
from microp.schedule.builders import one_f_one_b, zb_h1
from microp.settings import EngineSettings
from microp.worker import RankError, launch_ranks, run_threads

TORCH = {"backend": "gloo", "engine": EngineSettings("torch", False), "batch_size": 8}
PLACES = {"forward": "action 1F1", "backward": "action 1B1", "weight_gradient": "action 1W1"}
PLACES |= {"optimizer": "the optimizer", "Trainer": "its set-up", "torch": "action 1F0"}
STOPPED_S = 30  # that torch's launcher leaves a rank which does not answer SIGTERM


def fail(fault: Fault, attempt: Path, **changes) -> tuple[RankError, float]:
    """The failure, and the seconds from the fault until all ranks had ended."""
    build = zb_h1 if fault.where == "weight_gradient" else one_f_one_b
    job = small_job(schedule=build(2, 4), steps=50, **{"timeout_s": 200, **changes})
    with pytest.raises(RankError) as error:
        launch_ranks(job, attempt, fault)
    took = time.time() - float((attempt / "happened").read_text())
    pids = [int(file.read_text()) for file in attempt.glob("pid*")]
    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    return error.value, took


KILLED = ["kill forward shm", "kill backward tcp", "kill weight_gradient shm", "kill optimizer gloo"]
RAISED = ["raise forward shm", "raise backward gloo", "raise optimizer tcp", "raise Trainer shm", "raise torch gloo"]
ENDED = ["end backward shm", "interrupt forward gloo", "memory forward shm", "exit backward gloo", "leave forward shm"]
HUNG = ["hang forward shm", "hang backward gloo", "hang optimizer shm", "hang Trainer shm", "hang torch gloo"]


@pytest.mark.parametrize("fault", [*KILLED, *RAISED, *ENDED, "leave optimizer gloo", "quit optimizer shm"])
def test_a_fault_names_rank_place_and_step(fault, tmp_path):
    how, where, backend = fault.split()
    error, took = fail(Fault(how, where), tmp_path, **(TORCH if where == "torch" else {"backend": backend}))
    step = 0 if where == "Trainer" else 2
    assert re.fullmatch(told(Fault(how, where), 1, PLACES[where], step), str(error))
    assert took < 60  # far below the time-out, on a busy machine too
    assert [row["step"] for row in read_rows(tmp_path, 1)] == list(range(step))  # no row is lost


@pytest.mark.parametrize("fault", [*HUNG, "stop backward shm"])
def test_a_rank_that_does_not_answer_is_named_by_those_that_wait(fault, tmp_path):
    how, where, backend = fault.split()
    changes = TORCH if where == "torch" else {"backend": backend}
    error, took = fail(Fault(how, where), tmp_path, timeout_s=6, **changes)
    said = told(Fault(how, where), 1, PLACES[where], 0 if where == "Trainer" else 2)
    if where == "torch":  # of gloo's transfers another may only be told that the connection was closed
        said += "|rank 1 was lost in 1F0, step 2, and wrote no error"
    assert re.fullmatch(said, str(error))
    assert took < 25 + STOPPED_S * (how == "stop")
    if where in ("forward", "backward") and how == "hang":
        assert "in _happen" in error.log.read_text()  # the log of the rank that hung says where it was


@pytest.mark.parametrize("where", ["forward", "optimizer"])  # one at a barrier
def test_time_in_which_all_ranks_are_stopped_does_not_count(where, tmp_path):
    """After Ctrl-Z and `fg` the slow rank needs some of the time-out that the others have not used."""
    job = small_job(schedule=one_f_one_b(2, 4), steps=4, timeout_s=4, backend="shm")

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
    launch_ranks(job, tmp_path, Fault("slow", where))
    stopping.join()
    assert len(read_rows(tmp_path, 0)) == 6


def test_a_rank_that_fails_before_it_has_a_log_is_named(tmp_path):
    with pytest.raises(RankError, match=r"rank [01] ended with exit code 1 before its start"):
        launch_ranks(small_job(), tmp_path, Unreadable())


def test_a_thread_that_hangs_does_not_keep_the_command(tmp_path, monkeypatch):
    forward, released = Stage.forward, threading.Event()

    def hanging(stage, microbatch, x):
        if x is not None and microbatch == 1:
            released.wait(60)
        return forward(stage, microbatch, x)

    monkeypatch.setattr(Stage, "forward", hanging)
    said = "rank 0 waited 3 s for 1B0 from rank 1, which has been in 1F1 for "
    before = threading.active_count()
    with pytest.raises(RankError, match=said):
        run_threads(small_job(timeout_s=3, backend="threads"), tmp_path)
    assert threading.active_count() == before + 1
    released.set()
