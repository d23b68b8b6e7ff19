"""Ranks start, fail and end as they should: real processes, real signals."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import own_model
import pytest
import rank_faults
from conftest import small_job
from sockets import is_loopback, listening
from user import until

from microp.comms.waiting import is_alive
from microp.records import WriteError
from microp.schedule.builders import gpipe
from microp.settings import BucketSettings, EngineSettings
from microp.worker import RankError, launch, launch_ranks
from microp.worker.threads import run_threads

TESTS = Path(__file__).parents[1]


def test_a_rank_that_does_not_answer(tmp_path):
    results = launch_ranks(small_job(timeout_s=4), tmp_path, 3, rank_faults.never_send)
    said = r"rank 1 waited 4 s for 0F0 from rank 0, which has been in a step for \d\.\d s \(step 0\)"
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
    until(lambda: all(file.exists() and file.read_text() for file in files), seconds=300)
    pids = [int(file.read_text()) for file in files]
    assert all(map(is_alive, pids))
    parent.kill()
    parent.wait(120)
    until(lambda: not any(map(is_alive, pids)))
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


# --- a launch on one host listens on loopback only ------------------------------------------------


LAUNCHES = {
    "gloo": partial(small_job, engine=EngineSettings("compare", False)),
    "tcp": small_job,
    "shm": partial(small_job, schedule=gpipe(1, 2), replicas=2, sync=BucketSettings("compare", "library", 25.0, 1.0)),
}


def test_addresses_are_read():
    with socket.create_server(("0.0.0.0", 0)), socket.create_server(("::1", 0), family=socket.AF_INET6):
        assert {"0.0.0.0", "::1"} <= set(listening(os.getpid()))
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "0.0.0.0", "::")] == [True, True, False, False]


@pytest.mark.parametrize("backend", LAUNCHES)
def test_a_launch_listens_on_loopback_only_and_unpickles_nothing(backend, tmp_path):
    job = LAUNCHES[backend](backend=backend, batch_size=8, steps=2)
    launchers, over = [], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            launchers.extend(listening(os.getpid()))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        found = launch_ranks(job, tmp_path, 3, rank_faults.listen)
    finally:
        over.set()
        watching.join()
    assert all(found.values()), "gloo listens in every rank"
    addresses = [each for addresses in found.values() for each in addresses]
    assert launchers, "the store listens in the launcher"
    assert [each for each in (*launchers, *addresses) if not is_loopback(each)] == []


def test_a_port_can_be_used_again(monkeypatch):
    """The system gives the ports of closed stores out again."""
    opened = launch._open_store()
    port = opened.port
    del opened
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda _: create(("127.0.0.1", port)))
    again = launch._open_store()
    assert again.port == port


# --- ranks that hold the same weights -------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "ranks", "replicas", "said"),
    [
        ({}, 1, 2, "replica 1 (rank 1) began with another bias of layer 1 than replica 0"),
        ({}, 2, 3, "replica 1 (rank 2) began with another bias of layer 1 than replica 0"),
        ({"buffer": True}, 1, 2, "replica 1 (rank 1) began with another table of layer 1 than replica 0"),
        ({"tied": True}, 3, 1, "rank 2 began with another weight of layer 2 than the weight of layer 0"),
        ({"tied": True}, 1, 1, None),
        ({}, 3, 1, None),
    ],
)
def test_a_model_function_that_is_not_deterministic_is_refused_where_it_matters(keys, ranks, replicas, said, tmp_path):
    settings = own_model.settings_of(own_model.unseeded, **keys)
    job = own_model.own_job(settings, schedule=gpipe(ranks, 3), replicas=replicas, backend="threads")
    if said is None:
        run_threads(job, tmp_path)
        return
    with pytest.raises(RankError, match=f"{re.escape(said)}.*torch's generator, which is seeded"):
        run_threads(job, tmp_path)


@pytest.mark.parametrize("function", [own_model.by_numpy, own_model.tied_layers, own_model.normed])
def test_a_deterministic_one_is_not(function, tmp_path):
    job = own_model.own_job(own_model.settings_of(function), replicas=2, backend="threads", batch_size=18)
    run_threads(job, tmp_path)
