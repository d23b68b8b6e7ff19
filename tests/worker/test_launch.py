"""Ranks start and end as they should: real processes, real signals."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import own_model
import pytest
import rank_faults
from conftest import small_job
from rank_faults import is_loopback, listening
from user import until

from microp.comms.waiting import is_alive
from microp.records import WriteError
from microp.schedule.builders import chimera, gpipe
from microp.settings import BucketSettings, EngineSettings
from microp.worker import RankError, launch, launch_ranks, run_threads

TESTS = Path(__file__).parents[1]
SCRIPT = """
import pickle, sys, rank_faults
from functools import partial
from pathlib import Path
from microp.worker import launch_ranks
def entry(word, job, comms, local_rank, attempt):
    return word, comms.rank, sys.modules[entry.__module__].__name__
def plain(job, comms, local_rank, attempt):
    return entry("plain", job, comms, local_rank, attempt)
if __name__ == "__main__":
    job = pickle.loads(Path("job").read_bytes())
    for each in (plain, partial(entry, "partial")):
        print(sorted(launch_ranks(job, Path.cwd(), each).items()), flush=True)
    launch_ranks(job, Path.cwd(), rank_faults.sleep_on)
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


COMPARED = {"schedule": gpipe(1, 2), "replicas": 2, "sync": BucketSettings("compare", "library", 25.0, 1.0)}
LAUNCHES = {"gloo": {"engine": EngineSettings("compare", False)}, "tcp": {}, "shm": COMPARED}


@pytest.mark.parametrize("backend", LAUNCHES)
def test_a_launch_listens_on_loopback_only_and_unpickles_nothing(backend, tmp_path):
    job = small_job(**LAUNCHES[backend], backend=backend, batch_size=8, steps=2)
    launchers, over = [], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            launchers.extend(listening(os.getpid()))

    watching = threading.Thread(target=look)
    watching.start()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        by_rank = launch_ranks(job, tmp_path, rank_faults.listen)
    finally:
        over.set()
        watching.join()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers  # elastic replaces them
    assert all(by_rank.values()), "gloo listens in every rank"
    assert launchers, "the store listens in the launcher"
    addresses = [*launchers, *(address for rank in by_rank.values() for address in rank)]
    assert [address for address in addresses if not is_loopback(address)] == []


UNSEEDED = own_model.unseeded
MADE = [  # a function and its keys, how it runs, and what is said of it
    (UNSEEDED, {}, gpipe(1, 3), 2, "bias of layer 1 on rank 1", "bias of layer 1 on rank 0"),
    (UNSEEDED, {}, gpipe(2, 3), 3, "bias of layer 1 on rank 2", "bias of layer 1 on rank 0"),
    (UNSEEDED, {}, chimera(2, 2), 1, "bias of layer 1 on rank 1", "bias of layer 1 on rank 0"),
    (UNSEEDED, {"buffer": True}, gpipe(1, 3), 2, "table of layer 1 on rank 1", "table of layer 1 on rank 0"),
    (UNSEEDED, {"tied": True}, gpipe(3, 3), 1, "weight of layer 2 on rank 2", "weight of layer 0 on rank 0"),
    (UNSEEDED, {"tied": True}, gpipe(1, 3), 1),
    (UNSEEDED, {}, gpipe(3, 3), 1),
    *((function, {}, gpipe(2, 3), 2) for function in (own_model.by_numpy, own_model.tied_layers, own_model.normed)),
]


@pytest.mark.parametrize("case", MADE)
def test_a_model_function_that_is_not_deterministic_is_refused_where_it_matters(case, tmp_path):
    function, keys, schedule, replicas, *said = case
    settings = own_model.settings_of(function, **keys)
    job = own_model.own_job(settings, schedule=schedule, replicas=replicas, backend="threads", batch_size=18)
    with (
        pytest.raises(RankError, match=f"{' began with other numbers than '.join(said)}.*torch's generator, which")
        if said
        else nullcontext()
    ):
        run_threads(job, tmp_path)


def test_a_full_disk_on_which_torch_s_launcher_stumbles_is_named(tmp_path, monkeypatch):
    """A rank that fails leaves its error in a file, which a full disk leaves empty; the launcher reads it."""

    def stumble(*_):
        raise json.JSONDecodeError("Expecting value", "", 0)

    monkeypatch.setattr(launch, "elastic_launch", lambda *_: stumble)
    with pytest.raises(json.JSONDecodeError):
        launch_ranks(small_job(), tmp_path)
    monkeypatch.setattr(launch, "full_disk", lambda path: WriteError(f"no room for {path}"))
    with pytest.raises(WriteError, match="no room for .*logs"):
        launch_ranks(small_job(), tmp_path)
