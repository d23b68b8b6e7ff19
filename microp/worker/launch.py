"""Starts the ranks of a job and waits until they have ended.

::

    launch_ranks   this process ─► forkserver (torch loaded) ─► rank 0, rank 1, ...

`hosts` is for ranks that torchrun has started; `threads` runs them as threads of this process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from microp.comms import Comms, Heartbeats, Hosts, Place, StagedComms, init_process_group
from microp.device import gpu_of
from microp.job import Job
from microp.records import full_disk
from microp.worker.failure import what_failed
from microp.worker.rank import run_rank

Entry = Callable[[Job, Comms, int, Path], Any]
# Imported once for all ranks; the optimizer needs the last.
PRELOAD = ["microp.system.silent_interrupt", "microp.worker", "torch._dynamo"]
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"  # the name of the network interface of that address
SOCKET_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # variables: where the libraries listen
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LAST_S = 0.2  # several times as long as torch's launcher takes to see that a rank has ended


def launch_ranks(job: Job, attempt: Path, entry: Entry = run_rank) -> dict[int, Any]:
    """Start one process per rank, and return when all have ended.

    torch's launcher ends the others after one has failed: by SIGTERM, and what is still there after 30 s by SIGKILL.

    Args:
        attempt: the folder into which ranks write; elastic writes their output into `logs/`.
        entry: what each rank runs, (job, comms, local rank, attempt) -> any picklable value.

    Returns:
        world rank -> the value that its entry returned.

    Raises:
        RankError: a rank failed or was killed.
        WriteError: a rank could not write its rows.
        KeyboardInterrupt: this process received Ctrl-C or another signal to end.
    """
    # 1. prepare what the ranks share: a store to meet, memory for their heartbeats
    for name in ("torchelastic-events-null", *logging.root.manager.loggerDict):  # each with a level of its own
        if name.startswith(("torch.distributed.elastic", "torchelastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    multiprocessing.set_forkserver_preload(PRELOAD)
    store, heartbeats = _open_store(), Heartbeats.shared(job.processes)
    # 2. start them and wait, with this process as it was before elastic and multiprocessing changed it
    try:
        with _process_kept(entry):
            launched = elastic_launch(_launch_config(job, attempt, store.port), _in_new_process)
            results: dict[int, Any] = launched(job, attempt, entry, heartbeats.path)
        return dict(sorted(results.items()))  # elastic has them in the order in which ranks ended
    # 3. say which rank failed, and why
    except SignalException as stop:
        raise KeyboardInterrupt from stop
    except ChildFailedError as error:
        raise what_failed(job, attempt, error.failures, heartbeats) from None
    except Exception as error:  # torch's launcher reads how a rank failed from a file, which a full disk leaves empty
        if no_room := full_disk(attempt / "logs"):
            raise no_room from error
        raise
    finally:
        heartbeats.close()


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
        # What is ignored stays ignored: SIGHUP after nohup, SIGINT in a job that a script started in the background.
        signals_to_handle=",".join(number.name for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN),
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
def _process_kept(entry: Callable[..., Any]) -> Iterator[None]:
    """Restore the signal handlers that elastic replaces, and hide from the ranks what they would take over from here.

    With multiprocessing that is the main module: ranks would run the user's script again to import its definitions. A
    script that calls `microp.measure` needs no `if __name__ == "__main__"`; one that defines the entry is not hidden,
    because the ranks must import that. And how this process starts others: a worker of joblib has a way of its own.
    """
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    if getattr(entry, "func", entry).__module__ != "__main__":
        sys.modules["__main__"] = ModuleType("__main__")
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(method, force=True)
        sys.modules["__main__"] = main
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _in_new_process(job: Job, attempt: Path, entry: Entry, heartbeats_path: str | None) -> Any:
    """Connect to the other ranks, run `entry`, wait for the others to have run it, and return its result."""
    # 1. let this process end with its launcher, and at once: a handler of Python's waits for torch's C++ code
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.register(signal.SIGTERM, chain=True)  # the log of a rank that did not answer says where it was
    end_with_parent()
    # 2. take the rank's part of the machine
    keep_freed_memory()
    torch.set_num_threads(job.device.threads)
    os.environ |= dict.fromkeys(SOCKET_INTERFACES, LOOPBACK_INTERFACE)  # by default other hosts can connect
    local_rank = int(os.environ["LOCAL_RANK"])
    heartbeats = Heartbeats(job.processes, heartbeats_path)
    heartbeats.start(int(os.environ["RANK"]))
    # 3. run; a rank that lost another one ends after it, so that torch's launcher first sees the one that was killed
    try:
        comms = connect(job, local_rank)
        comms.heartbeats = heartbeats
        result = entry(job, comms, local_rank, attempt)
        heartbeats.at(comms.world_rank, Place.ENDED)
        comms.barrier()  # no rank ends while another may use a connection; the system closes them, sooner than gloo
    except BaseException:
        traceback.print_exc()
        time.sleep(_LAST_S)
        faulthandler.unregister(signal.SIGTERM)  # from here on the terminal would get it, and not the log
        sys.exit(1)
    return result


def connect(job: Job, local_rank: int, hosts: Hosts | None = None, store: Store | None = None) -> Comms:
    """Connect this rank with the others of the job; the last arguments are those of `init_process_group`."""
    device = cpu = torch.device("cpu")
    if job.device.name == "cuda":
        device = torch.device("cuda", gpu_of(job.device, local_rank))
        torch.cuda.set_device(device)
    is_staged = job.device.is_shared
    comms = init_process_group(job.backend, cpu if is_staged else device, job.timeout_s, job.replicas, hosts, store)
    return StagedComms(comms, device) if is_staged else comms


def keep_freed_memory() -> None:
    """Let this process keep the memory that its tensors free; other C libraries than glibc are left as they are.

    By default glibc gives large pieces back to the system as soon as they are free, and takes them again in the next
    action: gradients of 1 MiB cost up to 18,000 page faults per step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # bytes; glibc takes no higher bound for pieces that come from its heap
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)  # never


def end_with_parent() -> None:
    """End this process soon after the process that launched it or its own parent has ended, even if that was killed.

    A rank of `launch_ranks` is a child of the forkserver, not of the launcher, and keeps the
    forkserver alive; multiprocessing gives it a pipe that closes with the launcher. When the
    forkserver ends, torch sends it SIGINT, which may be ignored. A rank of torchrun is torchrun's
    own child. A process whose parent has ended gets another parent.
    """
    launcher, parent = multiprocessing.parent_process(), os.getppid()
    wait = launcher.join if launcher else time.sleep

    def watch() -> None:
        while os.getppid() == parent and (launcher is None or launcher.is_alive()):
            wait(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
