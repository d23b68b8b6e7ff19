"""Watches the ranks of a launch: ends those that no longer end by themselves, and knows where each of them was.

::

    rank 0   runs ─── fails ┐
    rank 1   runs ──────────┴── SIGTERM, by torch's launcher ──► ends
    rank 2   does not react ──────────────── shutdown_s ───────► SIGKILL
    rank 3   stopped ── STOPPED_POLLS ──► SIGKILL, and then as above

A rank that runs is left alone, however long an action takes: the others end after `comms.timeout_s`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from multiprocessing.context import get_spawning_popen
from types import TracebackType
from typing import Any

from microp.comms import STOPPED, Heartbeats, Place, process_state
from microp.job import Job

POLL_S = 0.25
STOPPED_POLLS = 8  # counted, because the launcher itself may have been stopped by the terminal's Ctrl-Z


class Exits:
    """The exit codes of the ranks of one launch; torch's launcher tells only the first that it sees.

    multiprocessing pickles it as an argument of each rank, in the order of the ranks, and so it learns of their
    processes. The ranks get None in its place.

    Attributes:
        asked: the ranks that torch's launcher has asked to end while they ran.
    """

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self.asked: set[int] = set()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        process: Any = get_spawning_popen()
        rank, terminate = len(self._processes), process.terminate

        def ask() -> None:  # a process that has just been killed has ended before the forkserver says so
            if process_state(process.pid) is not None:
                self.asked.add(rank)
            terminate()

        process.terminate = ask
        self._processes.append(process)
        return type(None), ()

    def codes(self) -> dict[int, int]:
        """Return rank -> the exit code of one that has ended, which is below 0 if a signal ended it."""
        codes = {rank: process.poll() for rank, process in enumerate(self._processes)}
        return {rank: code for rank, code in codes.items() if code is not None}


class Watch:
    """A context in which the ranks of one launch are watched by a thread of the launcher.

    Args:
        job: the job that the ranks run.
        shutdown_s: the time that the other ranks have to end after one has ended, in seconds.

    Attributes:
        heartbeats: where the ranks are.
        exits: how the ranks ended; it has to be an argument of the ranks.
        ended: the ranks that the watch has ended -> why.
    """

    def __init__(self, job: Job, shutdown_s: float) -> None:
        self._job, self._shutdown_s = job, shutdown_s
        self.heartbeats = Heartbeats.shared(job.processes)
        self.exits = Exits()
        self.ended: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self.heartbeats.close()

    def has_finished(self, world_rank: int) -> bool:
        """Return whether a rank has done all that it had to do."""
        return self.heartbeats.read(world_rank).place == Place.ENDED

    def where(self, world_rank: int) -> str:
        """Return where a rank was last: `in 1B4, step 3`; empty if it had not started."""
        beat = self.heartbeats.read(world_rank)
        if not beat.pid:
            return "before it had started"
        return f"in {beat.where(self._job.schedule, world_rank % self._job.ranks)}, step {beat.step}"

    def _watch(self) -> None:
        stopped: Counter[int] = Counter()
        first_end = 0.0  # when a rank was first seen to have ended
        while not self._over.wait(POLL_S):
            pids = {rank: self.heartbeats.read(rank).pid for rank in range(self._job.processes)}
            states = {rank: process_state(pid) for rank, pid in pids.items() if pid}
            for rank, state in states.items():
                stopped[rank] = stopped[rank] + 1 if state == STOPPED else 0
                if stopped[rank] == STOPPED_POLLS:
                    self._end(rank, pids[rank], f"was stopped by a signal {self.where(rank)}")
            if None in states.values():
                first_end = first_end or time.monotonic()
            if first_end and time.monotonic() - first_end > self._shutdown_s:
                for rank, state in states.items():
                    if state is not None and rank not in self.ended:
                        self._end(rank, pids[rank], f"did not end within {self._shutdown_s:g} s {self.where(rank)}")

    def _end(self, rank: int, pid: int, why: str) -> None:
        self.ended[rank] = why
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
