"""Starts the ranks of a job and waits until they have ended.

::

    launch_ranks   this process ─► forkserver (torch loaded) ─► rank 0, rank 1, ...

`joined` is for ranks that torchrun has started; `threads` runs them as threads of this process.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from microp.comms import Comms, Heartbeats, Hosts, Place, StagedComms, init_process_group
from microp.device import gpu_of
from microp.job import Job
from microp.settings import KIB, TextSettings
from microp.store import full_disk
from microp.worker.allocator import keep_freed_memory
from microp.worker.failure import no_server, what_failed
from microp.worker.forkserver import no_other_forkserver, start_forkserver
from microp.worker.forkserver_setup import end_by_interrupt
from microp.worker.leftovers import named_semaphores
from microp.worker.rank import run_rank
from microp.worker.watch import Watch

Entry = Callable[[Job, Comms, int, Path], Any]
_TO_BEGIN = 32 * KIB  # the room that a rank needs on the disk: for its log, its first rows and its error
_LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"  # the name of the network interface of that address
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


# --- processes -----------------------------------------------------------------------------------


def launch_ranks(job: Job, attempt: Path, shutdown_s: int, entry: Entry = run_rank) -> dict[int, Any]:
    """Start one process per rank, and return when all have ended.

    Args:
        job: the job to run.
        attempt: the folder into which ranks write; elastic writes their output into `logs/`.
        shutdown_s: the time that the other ranks have to end after one has failed, in seconds.
        entry: the function that each rank runs, (job, comms, local rank, attempt) -> any picklable value.

    Returns:
        world rank -> the value that its entry returned.

    Raises:
        RankError: a rank failed or was killed.
        WriteError: a rank could not write its rows, or there is no room for what the launcher needs.
        KeyboardInterrupt: this process received Ctrl-C or another signal to end.
    """
    _silence_torch()
    if no_room := full_disk(attempt / "logs", nbytes=job.processes * _TO_BEGIN):
        raise no_room
    start_forkserver(job.processes, isinstance(job.data, TextSettings) and job.data.is_library)
    store = _open_store()
    config = _launch_config(job, attempt, store.port)
    hiding = (
        *(main_module_hidden(entry), _start_method_hidden(), _signal_handlers_kept()),
        *(_error_files_in(attempt / "logs"), named_semaphores(), no_other_forkserver()),
    )
    with Watch(job, shutdown_s) as watch, ExitStack() as stack:
        for each in hiding:
            stack.enter_context(each)
        try:
            results: dict[int, Any] = elastic_launch(config, _in_new_process)(
                job, attempt, entry, watch.heartbeats.path, watch.exits
            )
        except SignalException as stop:
            raise KeyboardInterrupt from stop
        except ChildFailedError as error:
            raise what_failed(attempt, error, watch) from None
        except (EOFError, ConnectionError) as error:
            raise no_server(attempt) from error
    return results


def _silence_torch() -> None:
    """Hide what torch's launcher logs; each of its modules has a logger with a level of its own."""
    for name in ("torchelastic-events-null", *logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torchelastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _error_files_in(folder: Path) -> Iterator[None]:
    """Let torch make its files for a rank's error in a folder of the attempt.

    It makes and removes each of them only for its name, in the temporary folder, where a kill in between left it.
    """
    folder.mkdir(exist_ok=True)
    module = vars(import_module("torch.multiprocessing.spawn"))  # torch.multiprocessing has a function of this name
    module["tempfile"] = SimpleNamespace(NamedTemporaryFile=partial(tempfile.NamedTemporaryFile, dir=folder))
    try:
        yield
    finally:
        module["tempfile"] = tempfile
        for left in folder.glob("pytorch-errorfile-*"):  # of a rank that failed before it could tell microp why
            left.unlink(missing_ok=True)


def _launch_config(job: Job, attempt: Path, port: int) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.processes,
        run_id=f"{job.run_id}-{uuid.uuid4().hex[:8]}",
        rdzv_backend="static",
        rdzv_endpoint=f"{_LOOPBACK}:{port}",
        rdzv_configs={"rank": 0},
        local_addr=_LOOPBACK,
        start_method="forkserver",
        max_restarts=0,
        monitor_interval=0.02,
        logs_specs=DefaultLogsSpecs(log_dir=str(attempt / "logs"), redirects=Std.ALL),
    )


def _open_store() -> TCPStore:
    """Open the store through which the ranks of one launch connect; it can be reached from this host only.

    elastic's own rendezvous, c10d, first waits a random time of up to 0.3 s, so that many hosts do
    not connect at once. A store that opens its socket itself listens on all addresses of the host,
    whatever name it is given, and answers everybody.
    """
    listening = socket.create_server((_LOOPBACK, 0))
    port = listening.getsockname()[1]
    return TCPStore(
        _LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listening.detach(),  # the store closes it
    )


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the signal handlers that elastic replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _start_method_hidden() -> Iterator[None]:
    """Hide how this process starts others, which ranks take over: a worker of joblib has a way of its own."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


@contextmanager
def main_module_hidden(entry: Callable[..., Any]) -> Iterator[None]:
    """Prevent the ranks from running the user's script again, as multiprocessing does to import its definitions.

    A script that calls `microp.measure` then needs no `if __name__ == "__main__"`. If the entry is
    defined in the script itself, the script is not hidden, because the ranks must import the entry.
    """
    main = sys.modules["__main__"]
    if getattr(entry, "func", entry).__module__ == "__main__":
        yield
        return
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _in_new_process(job: Job, attempt: Path, entry: Entry, heartbeats: str | None, _: None) -> Any:
    """Connect to the other ranks, run `entry`, wait for the others to have run it, and return its result."""
    gc.freeze()  # the collector need not scan the objects from before the fork
    end_by_interrupt()
    faulthandler.register(signal.SIGTERM, chain=True)  # the log of a rank that did not answer says where it was
    end_with_parent()
    keep_freed_memory()
    torch.set_num_threads(job.device.threads)
    for library in ("GLOO", "NCCL"):
        os.environ[f"{library}_SOCKET_IFNAME"] = (
            LOOPBACK_INTERFACE  # by default they listen where other hosts can connect
        )
    local_rank = int(os.environ["LOCAL_RANK"])
    shared = Heartbeats(job.processes, heartbeats)
    shared.start(int(os.environ["RANK"]))
    try:
        comms = connect(job, local_rank)
        comms.heartbeats = shared
        result = entry(job, comms, local_rank, attempt)
        shared.at(comms.world_rank, Place.ENDED)
        comms.barrier()  # no rank ends while another may use a connection; the system closes them, sooner than gloo
    except BaseException:  # torch would write it to a file in the temporary folder, and leave that there
        traceback.print_exc()
        sys.exit(1)
    return result


def connect(job: Job, local_rank: int, hosts: Hosts | None = None, store: Store | None = None) -> Comms:
    """Connect this rank with the others of the job; the last arguments are those of `init_process_group`."""
    cpu = torch.device("cpu")
    if job.device.name != "cuda":
        return init_process_group(job.backend, cpu, job.timeout_s, job.replicas, hosts, store)
    device = torch.device("cuda", gpu_of(job.device, local_rank))
    torch.cuda.set_device(device)
    if not job.device.is_shared:
        return init_process_group(job.backend, device, job.timeout_s, job.replicas, hosts, store)
    return StagedComms(init_process_group(job.backend, cpu, job.timeout_s, job.replicas, hosts, store), device)


def end_with_parent() -> None:
    """End this process soon after the process that launched it has ended, even if that was killed.

    A rank of `launch_ranks` is a child of the forkserver, not of the launcher, and keeps the
    forkserver alive; multiprocessing gives it a pipe that closes with the launcher. A rank of
    torchrun is torchrun's own child and gets another parent when torchrun has ended.
    """
    launcher, parent = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:
        if launcher is not None:
            launcher.join()
        else:
            while os.getppid() == parent:
                time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
