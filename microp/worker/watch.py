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
from types import TracebackType

from microp.comms import STOPPED, Heartbeats, process_state
from microp.job import Job

POLL_S = 0.25
STOPPED_POLLS = 8  # counted, because the launcher itself may have been stopped by the terminal's Ctrl-Z


class Watch:
    """A context in which the ranks of one launch are watched by a thread of the launcher.

    Args:
        job: the job that the ranks run.
        shutdown_s: the time that the other ranks have to end after one has ended, in seconds.

    Attributes:
        heartbeats: where the ranks are.
        ended: the ranks that the watch has ended -> why.
    """

    def __init__(self, job: Job, shutdown_s: float) -> None:
        self._job, self._shutdown_s = job, shutdown_s
        self.heartbeats = Heartbeats(job.processes)
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

    def where(self, world_rank: int) -> str:
        """Return where a rank was last: `in 1B4, step 3`; empty if it had not started."""
        beat = self.heartbeats.read(world_rank)
        if not beat.pid:
            return "before it had started"
        return f"in {beat.where(self._job.schedule, world_rank % self._job.ranks)}, step {beat.step}"

    def _watch(self) -> None:
        stopped: Counter[int] = Counter()
        first_end: float | None = None
        while not self._over.wait(POLL_S):
            pids = {rank: self.heartbeats.read(rank).pid for rank in range(self._job.processes)}
            states = {rank: process_state(pid) for rank, pid in pids.items() if pid}
            for rank, state in states.items():
                stopped[rank] = stopped[rank] + 1 if state == STOPPED else 0
                if stopped[rank] == STOPPED_POLLS:
                    self._end(rank, pids[rank], f"was stopped by a signal {self.where(rank)}")
            if first_end is None and None in states.values():
                first_end = time.monotonic()
            if first_end is not None and time.monotonic() - first_end > self._shutdown_s:
                for rank, state in states.items():
                    if state is not None and rank not in self.ended:
                        self._end(rank, pids[rank], f"did not end within {self._shutdown_s:g} s {self.where(rank)}")

    def _end(self, rank: int, pid: int, why: str) -> None:
        self.ended[rank] = why
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
