"""From a plan to ranks that run it, and back.

::

    run_elastic   this process ─► forkserver (torch loaded) ─► rank 0, rank 1, ...   the default
    run_threads   this process ─► a thread a rank                                   comms=threads
    run_joined    torchrun ─► this process is one rank, the others are elsewhere    RANK is set
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from microp.comms import Comms, init_process_group, thread_comms
from microp.plan import Plan
from microp.records import read_errors
from microp.train import run_rank

Entry = Callable[[Plan, Comms, int, Path], Any]
_PRELOAD = ["microp.launch", "torch._dynamo"]  # what a rank imports (the latter for its optimizer), loaded once
_ports: set[int] = set()  # of all launches of this process
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class RankError(RuntimeError):
    """A rank failed; the message says which, at which action and step."""


@dataclass
class LaunchSettings:
    """What a user chooses.

    Attributes:
        name: `elastic`, or `torchrun` to join the launch that RANK in the environment tells of.
        shutdown_s: how long the other ranks may take to end after one has failed, in seconds.
    """

    name: str
    shutdown_s: int

    def problems(self, ranks: int, replicas: int = 1) -> list[str]:
        """What does not fit the environment, a sentence each."""
        found = []
        world = os.environ.get("WORLD_SIZE")
        if self.shutdown_s < 1:
            found.append(f"launch.shutdown_s={self.shutdown_s} is below 1: use at least 1")
        if self.name == "torchrun" and not joins():
            found.append(
                "launch=torchrun, but RANK is not in the environment: start with "
                f"`torchrun --nproc_per_node={ranks * replicas} -m microp.run ...`, or use launch=elastic"
            )
        if joins() and world and int(world) != ranks * replicas:
            found.append(
                f"ranks={ranks}, but torchrun started {world} processes: say ranks={world}"
                if replicas == 1
                else f"ranks={ranks} times replicas={replicas} is {ranks * replicas}, but torchrun started {world} "
                f"processes: use torchrun --nproc_per_node={ranks * replicas}, or other numbers"
            )
        return found


def joins() -> bool:
    """Whether torchrun started this process as one of the ranks."""
    return "RANK" in os.environ


# --- processes -----------------------------------------------------------------------------------


def run_elastic(plan: Plan, attempt: Path, shutdown_s: int, entry: Entry | None = None) -> dict[int, Any]:
    """Start a process a rank, and come back when all have ended.

    Args:
        plan: what to run.
        attempt: where ranks write; elastic puts their output into `logs/`.
        shutdown_s: how long the others may take to end after one has failed.
        entry: what a rank runs instead of its training, (plan, comms, local rank, attempt).

    Returns:
        rank -> what its entry returned.

    Raises:
        RankError: a rank failed, or was killed.
        KeyboardInterrupt: Ctrl-C, or another signal to end.
    """
    for name in ("torch.distributed.elastic", "torchelastic-events-null", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    multiprocessing.set_forkserver_preload(_PRELOAD)
    store = _meeting_place()
    config = _launch_config(plan, attempt, shutdown_s, store.port)
    try:
        with _signal_handlers_kept():
            results: dict[int, Any] = elastic_launch(config, _process)(plan, attempt, entry or run_rank)
    except SignalException as stop:
        raise KeyboardInterrupt from stop
    except ChildFailedError as error:
        raise RankError(_what_failed(attempt, error)) from None
    return results


def _launch_config(plan: Plan, attempt: Path, shutdown_s: int, port: int) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=plan.processes,
        run_id=f"{plan.run_id}-{uuid.uuid4().hex[:8]}",
        rdzv_backend="static",
        rdzv_endpoint=f"localhost:{port}",
        rdzv_configs={"rank": 0},
        local_addr="localhost",
        start_method="forkserver",
        max_restarts=0,
        monitor_interval=0.02,
        shutdown_timeout=shutdown_s,
        logs_specs=DefaultLogsSpecs(log_dir=str(attempt / "logs"), redirects=Std.ALL),
    )


def _meeting_place() -> TCPStore:
    """Where the ranks of one launch meet, on a port that is free and that this process has not used before.

    elastic's own, c10d, first waits for up to 0.3 s at random, lest many hosts come at once.
    torch remembers the ports of stores that are gone, and fails on one that the system gives
    out again, which within 200 launches is likely.
    """
    given_again = []  # kept open meanwhile, so that another port is given
    while (store := TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True)).port in _ports:
        given_again.append(store)
    _ports.add(store.port)
    return store


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """elastic replaces them and does not put them back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _what_failed(attempt: Path, error: ChildFailedError) -> str:
    """The ranks' own words before elastic's: the rank that elastic blames is often a victim."""
    said = read_errors(attempt)
    silent = {rank: failure for rank, failure in error.failures.items() if rank not in {e["number"] for e in said}}
    for rank, failure in silent.items():
        if failure.exitcode in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            return f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name}"
    if said:
        return str(said[0]["message"])
    rank, failure = next(iter(error.failures.items()))
    return f"rank {rank} ended with exit code {failure.exitcode}: see {attempt / 'logs'}"


def _process(plan: Plan, attempt: Path, entry: Entry) -> Any:
    """A rank that is a process."""
    gc.freeze()  # what was loaded before this process was forked is nothing to collect
    end_with_parent()
    torch.set_num_threads(plan.device.threads)
    local_rank = int(os.environ["LOCAL_RANK"])
    comms = _dial_in(plan, local_rank)
    result = entry(plan, comms, local_rank, attempt)
    comms.close()
    return result


def _dial_in(plan: Plan, local_rank: int) -> Comms:
    device = torch.device("cpu")
    if plan.device.name == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    return init_process_group(plan.backend, device, plan.timeout_s, plan.replicas)


def end_with_parent() -> None:
    """End this process soon after the one that launched it has ended, however that came about.

    A rank of `run_elastic` is the forkserver's child and not the launcher's, and keeps the
    forkserver alive; multiprocessing hands it a pipe that closes with the launcher. A rank
    of torchrun is torchrun's own child and gets another parent when that is gone.
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


# --- threads -------------------------------------------------------------------------------------


def run_threads(plan: Plan, attempt: Path) -> None:
    """Run every rank as a thread of this process.

    Raises:
        RankError: a rank failed.
    """
    threads_before = torch.get_num_threads()
    everyone = thread_comms(plan.ranks, plan.timeout_s, plan.replicas)

    def run(rank: int) -> None:
        try:
            run_rank(plan, everyone[rank], rank, attempt)
        except Exception:  # run_rank has written it down
            everyone[rank].abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(plan.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(threads_before)
    if errors := read_errors(attempt):
        raise RankError(errors[0]["message"])


# --- torchrun ------------------------------------------------------------------------------------


def dial_in_joined(plan: Plan) -> Comms:
    """Join the process group of the launch that torchrun made."""
    end_with_parent()
    return _dial_in(plan, int(os.environ["LOCAL_RANK"]))


def run_joined(plan: Plan, comms: Comms, attempt: Path) -> None:
    """Be one rank, and leave every rank's rows and spans in rank 0's `attempt`.

    Raises:
        RankError: this rank failed.
    """
    try:
        run_rank(plan, comms, int(os.environ["LOCAL_RANK"]), attempt)
    except Exception as error:
        raise RankError(str(error)) from error
    own = [attempt / f"{kind}.rank{comms.number}.jsonl" for kind in ("steps", "spans", "reductions")]
    for files in comms.gather_all({path.name: path.read_text() for path in own if path.exists()}):
        for name, text in files.items():
            if comms.number == 0 and not (attempt / name).exists():  # on another host's disk
                (attempt / name).write_text(text)
