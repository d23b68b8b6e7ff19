"""Ranks start, fail and end as they should: real processes, real signals."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import SimpleNamespace

import pytest
import ranks as rank_code
import torch
import user
from conftest import small_job

from microp.model import library_text
from microp.schedule.builders import gpipe, one_f_one_b
from microp.settings import SyntheticSettings, TextSettings
from microp.store import WriteError, read_json, read_rows
from microp.worker import RankError, launch, launch_ranks, leftovers, run_threads
from microp.worker import forkserver as worker_forkserver
from microp.worker.forkserver import start_forkserver

spawn = import_module("torch.multiprocessing.spawn")  # torch.multiprocessing has a function of this name

TESTS = Path(__file__).parents[1]


def alive(pid: int) -> bool:
    """Running, and not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_rank_is_named_and_ends_the_others(tmp_path):
    job = small_job(schedule=one_f_one_b(3, 4), steps=50, timeout_s=600)
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 2 was killed by SIGKILL"):
        launch_ranks(job, tmp_path, 3, rank_code.die)
    assert time.monotonic() - began < job.timeout_s / 2  # the others do not wait for it
    assert [row["step"] for row in read_rows(tmp_path, 0)] == [0, 1]  # no row is lost


def test_a_failed_action_names_rank_action_and_step(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    job = small_job(schedule=gpipe(2, 4), steps=50)
    expected = "rank 1, action 1F1, step 2: the layer is broken"
    with pytest.raises(RankError, match=expected) as raised:
        launch_ranks(job, tmp_path, 3, rank_code.raise_in_action)
    assert "ValueError: the layer is broken" in raised.value.log.read_text()
    assert list((tmp_path / "tmp").iterdir()) == []
    error = read_json(tmp_path / "error.rank1.json")
    assert error["message"] == expected
    assert "ValueError: the layer is broken" in error["traceback"]
    assert [row["step"] for row in read_rows(tmp_path, 1)] == [0, 1]


def test_a_rank_that_does_not_answer(tmp_path):
    results = launch_ranks(small_job(timeout_s=1), tmp_path, 3, rank_code.never_send)
    said = r"rank 1 waited 1 s for 0F0 from rank 0, which has been in a step for \d\.\d s \(step 0\)"
    assert re.fullmatch(said, results[1])


def test_ranks_with_different_jobs_refuse(tmp_path):
    results = launch_ranks(small_job(), tmp_path, 3, rank_code.different_jobs)
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


@pytest.mark.parametrize(
    "data", [TextSettings("text", None), TextSettings("text", __file__), SyntheticSettings("synthetic")]
)
def test_the_server_reads_the_library_only_for_ranks_that_train_on_it(data, monkeypatch, tmp_path):
    loaded: list[list[str]] = []
    monkeypatch.setattr(multiprocessing, "set_forkserver_preload", loaded.append)
    launch_ranks(small_job(data=data), tmp_path, 3)
    assert ("microp.worker.library" in loaded[0]) == (data == TextSettings("text", None))


def test_what_the_server_imports_for_it_reads_the_library():
    library_text.cache_clear()
    importlib.reload(import_module("microp.worker.library"))
    assert library_text.cache_info().currsize == 1
    text = b"".join(path.read_bytes() for path in TextSettings("text", None).files())
    assert library_text().numpy().tobytes() == text


@pytest.fixture
def server(monkeypatch) -> forkserver.ForkServer:
    """A server of ranks that has not been started, for `start_forkserver`."""
    server = forkserver.ForkServer()
    monkeypatch.setattr(forkserver, "_forkserver", server)
    monkeypatch.setattr(forkserver, "ensure_running", server.ensure_running)
    monkeypatch.setattr(multiprocessing, "set_forkserver_preload", server.set_forkserver_preload)
    return server


def interrupt(server: forkserver.ForkServer) -> int:
    """Send Ctrl-C to a server that has been started, and return its exit code."""
    os.kill(server._forkserver_pid, signal.SIGINT)
    _, status = os.waitpid(server._forkserver_pid, 0)
    os.close(server._forkserver_alive_fd)
    os.close(server.socket_descriptor)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("moment", ["its start", "the import of torch"])
def test_ctrl_c_ends_a_server_that_is_not_ready_in_silence(moment, server, capfd):
    start_forkserver(1)
    if moment == "the import of torch":
        wait_for(lambda: "libtorch" in Path(f"/proc/{server._forkserver_pid}/maps").read_text(), 60)
    assert interrupt(server) == -signal.SIGINT
    assert capfd.readouterr() == ("", "")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("own", [None, "glibc.malloc.hugetlb=0"])
def test_only_the_server_takes_huge_pages_unless_the_user_says_otherwise(own, server, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    start_forkserver(1)
    process = Path(f"/proc/{server._forkserver_pid}")
    wait_for(lambda: "forkserver" in (process / "cmdline").read_text(), 60)  # until then it is a fork of this process
    variables = (process / "environ").read_text().split("\0")
    interrupt(server)
    assert [each for each in variables if "GLIBC" in each] == [f"GLIBC_TUNABLES={own or 'glibc.malloc.hugetlb=1'}"]
    assert os.environ.get("GLIBC_TUNABLES") == own


def test_the_process_that_removes_semaphores_outlives_a_closed_terminal(monkeypatch):
    """Both signals go to all processes of a terminal."""
    tracker = resource_tracker.ResourceTracker()
    for name in ("ensure_running", "register", "unregister", "getfd"):
        monkeypatch.setattr(resource_tracker, name, getattr(tracker, name))
    worker_forkserver._check_semaphores(1)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        os.kill(tracker._pid, number)
    os.close(tracker._fd)
    _, status = os.waitpid(tracker._pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


SCRIPT = """
import pickle
import sys
from functools import partial
from pathlib import Path

import ranks
from microp.worker import launch_ranks


def entry(word, job, comms, local_rank, attempt):
    return word, comms.rank, sys.modules[entry.__module__].__name__


def plain(job, comms, local_rank, attempt):
    return entry("plain", job, comms, local_rank, attempt)


if __name__ == "__main__":
    job = pickle.loads(Path("job").read_bytes())
    for each in (plain, partial(entry, "partial")):
        print(sorted(launch_ranks(job, Path.cwd(), 3, each).items()), flush=True)
    launch_ranks(job, Path.cwd(), 3, ranks.sleep_on)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ranks_end_with_their_parent_and_leave_nothing(how, whole, tmp_path):
    """The entries of the parent's first launches are its own: a function, or a part of one.

    Ranks have the script's module under another name, as of any process. The script that is killed starts in an
    interpreter of its own, as all do with `--whole`; else the others are forks of the warm process.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "job").write_bytes(pickle.dumps(small_job()))
    temporary = tmp_path / ("a-temporary-folder-whose-path-is-longer-than-that-of-a-socket-may-be" * 2)
    temporary.mkdir()
    own = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "TMPDIR": str(temporary)}
    with (tmp_path / "said").open("w") as said:
        if whole or how == signal.SIGKILL:
            command = [sys.executable, "script.py"]
            parent = subprocess.Popen(
                command, cwd=tmp_path, env={**os.environ, **own}, stdout=said, stderr=subprocess.DEVNULL
            )
        else:
            parent = user.begin(folder=tmp_path, program="script", **own)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), 300)
    pids = [int(file.read_text()) for file in files]
    assert all(alive(pid) for pid in pids)

    def semaphores() -> list[str]:
        return [path.name for path in Path("/dev/shm").glob(f"sem.microp-*-{parent.pid}-*")]

    assert len(semaphores()) == 2 * len(pids) + 5
    parent.send_signal(how)
    if isinstance(parent, subprocess.Popen):
        parent.wait(30)
        printed = (tmp_path / "said").read_text()
    else:
        printed, _ = parent.communicate(30)
    wait_for(lambda: not any(alive(pid) for pid in pids), 30)
    wait_for(lambda: not semaphores(), 30)
    assert [path.name for path in temporary.iterdir() if "torchinductor" not in path.name] == []  # a cache
    assert printed.splitlines() == [
        str([(rank, (word, rank, "__mp_main__")) for rank in range(2)]) for word in ("plain", "partial")
    ]


def test_the_next_launch_removes_what_killed_ones_left(tmp_path, monkeypatch):
    """It keeps what is of a process that runs, of another container, or of somebody else."""
    monkeypatch.setattr(leftovers, "SEMAPHORES", tmp_path / "shm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine, namespace = leftovers.own_prefix(), leftovers.own_prefix().split("-")[1]
    dead, other = f"microp-{namespace}-{ended.pid}-x", f"microp-1{namespace}-{ended.pid}-x"
    kept = [f"sem.{mine}x", f"sem.{other}", "sem.mp-abcdefgh", f"sem.microp-{namespace}-x"]
    (tmp_path / "tmp" / dead).mkdir(parents=True)
    (tmp_path / "tmp" / dead / "listener-1").touch()
    (tmp_path / "tmp" / mine).mkdir()
    (tmp_path / "shm").mkdir()
    for name in (f"sem.{dead}", *kept):
        (tmp_path / "shm" / name).touch()
    leftovers.remove_leftovers()
    assert sorted(path.name for path in (tmp_path / "shm").iterdir()) == sorted(kept)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == [mine]


def test_torch_s_files_are_not_in_the_temporary_folder(tmp_path, monkeypatch):
    """A kill while it makes one of them would leave it there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    start, made = spawn.start_processes, []

    def starting(*given, **named):
        made.append(spawn.tempfile.NamedTemporaryFile(prefix="pytorch-errorfile-").name)
        Path(f"{made[0]}-left.pickle").touch()  # as of a rank that failed before it ran any of our code
        return start(*given, **named)

    monkeypatch.setattr(torch.multiprocessing, "start_processes", starting)
    monkeypatch.setattr(launch, "start_forkserver", lambda *_: None)  # it runs already, and needs the folder
    launch_ranks(small_job(steps=1), tmp_path, 3)
    assert [Path(name).parent for name in made] == [tmp_path / "logs"]
    assert list((tmp_path / "logs").glob("pytorch-errorfile-*")) == []
    assert spawn.tempfile is tempfile


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
    with suppress(RankError), launch.main_module_hidden(rank_code.verbs):
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
    [faults] = launch_ranks(small_job(schedule=gpipe(1, 1)), tmp_path, 3, rank_code.take_memory_again).values()
    assert faults < 4096  # fewer than the pages that are freed and taken again ten times
