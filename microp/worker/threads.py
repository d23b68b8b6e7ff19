"""Runs the ranks of a job as threads of this process, for a debugger and for tests: `comms=threads`.

::

    rank 0   runs ─── fails ┐
    rank 1   waits ─────────┴── is woken ──► fails
    rank 2   hangs ──────────── SHUTDOWN_S ───► left behind: a thread cannot be ended from outside
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from microp.comms import Comms, Heartbeats, thread_comms
from microp.job import Job
from microp.worker.failure import first_error
from microp.worker.rank import run_rank

SHUTDOWN_S = 3.0  # in which the other threads have to end after one has failed
_POLL_S = 0.1


def run_threads(job: Job, attempt: Path, entry: Callable[[Job, Comms, int, Path], Any] = run_rank) -> dict[int, Any]:
    """Run every rank as a thread of this process; arguments and result are those of `launch_ranks`.

    Raises:
        RankError: a rank failed.
        WriteError: a rank could not write its rows.
    """
    threads_before = torch.get_num_threads()
    everyone = thread_comms(job.ranks, job.timeout_s, job.replicas)
    heartbeats = Heartbeats(job.processes)
    for number, comms in enumerate(everyone):
        comms.heartbeats = heartbeats
        heartbeats.start(number)

    raised: list[tuple[float, BaseException]] = []
    results: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = entry(job, everyone[rank], rank, attempt)
        except BaseException as error:  # also what a layer of the user raises to exit
            raised.append((time.monotonic(), error))
            everyone[rank].abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(job.processes)]
    for thread in threads:
        thread.start()
    try:
        _wait_for(threads, raised)
    except KeyboardInterrupt as stop:  # Python aborts if it ends while a thread computes
        raised.insert(0, (time.monotonic(), stop))
        for comms in everyone:
            comms.abort()
        _wait_for(threads, raised)
        raise
    torch.set_num_threads(threads_before)
    if raised:
        raise first_error(attempt) or raised[0][1]
    return results


def _wait_for(threads: list[threading.Thread], raised: list[tuple[float, BaseException]]) -> None:
    """Wait until all have ended, or until `SHUTDOWN_S` after something was raised."""
    for thread in threads:
        while thread.is_alive() and not (raised and time.monotonic() - raised[0][0] > SHUTDOWN_S):
            thread.join(_POLL_S)
