"""Runs this process as one rank of a launch that torchrun made, and gathers the rows of all hosts.

::

    run_rank, which writes to a folder of this host ── fails ──► the error of the first rank of this host that failed
    rank 2, on h1   rows, moments shifted ──► blocks ──► rank 0's folder, on h0

    first rank of a host   asked ──┐              ┌──► answered    offset = its time - (asked + answered) / 2
    rank 0                         └──► its time ─┘                at most wrong by (answered - asked) / 2

Clocks are compared by messages there and back, of which the quickest of many counts. Two readings, before the steps
and after them, give a line, because two clocks do not run equally fast.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import perf_counter_ns
from typing import NamedTuple, NoReturn

import torch

from microp.comms import Comms, Hosts
from microp.job import Job
from microp.records import HOSTS, ROWS, WriteError, shift_moments, write_json
from microp.worker.failure import RankError, first_error
from microp.worker.meeting import Joined
from microp.worker.rank import run_rank

_TURNS = 50  # messages there and back
_BLOCK = 4 << 20  # bytes of a file that are sent at once


def run_joined(job: Job, joined: Joined, attempt: Path, shares: bool) -> None:
    """Run one rank, which writes into a folder of this host, and bring all rows into the folder of rank 0.

    `shares` says whether `attempt`, the folder on this host, is that of rank 0, on a file system that the hosts share.

    Raises:
        RankError: this rank failed, or another one of its host, which is then named; or another host cannot be reached
            any more after the last step, and the rows are where they were.
        WriteError: the rows cannot be written.
    """
    signal.signal(signal.SIGTERM, _fail)
    try:
        # 1. train, with times on the clock of rank 0's host
        before = read_clocks(joined.everyone, joined.hosts)
        run_rank(job, joined.comms, int(os.environ["LOCAL_RANK"]), attempt, before[joined.host].offset_ns)
    except WriteError:
        raise
    except Exception as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows records this end
        raise first_error(attempt) or RankError(str(error)) from error
    if not joined.hosts.are_several:
        return
    try:
        # 2. compare the clocks again, and correct the times by what they have drifted
        after = read_clocks(joined.everyone, joined.hosts)
        if joined.host:
            mine = before[joined.host], after[joined.host]
            shift_moments(attempt, joined.everyone.rank, lambda moment: moment + drift_ns(*mine, moment))
        # 3. gather
        _gather(joined.everyone, attempt, shares)
        if joined.everyone.rank == 0:
            rows = [  # of each host its name, its ranks, and how its clock was compared with rank 0's
                {
                    "host": name,
                    "ranks": joined.hosts.ranks(number),
                    "clock_offset_ns": before[number].offset_ns,
                    "clock_drift_ns": after[number].offset_ns - before[number].offset_ns,
                    "clock_residual_ns": max(before[number].residual_ns, after[number].residual_ns),
                }
                for number, name in enumerate(joined.hosts.names)
            ]
            write_json(attempt / HOSTS, rows)
    except (TimeoutError, ConnectionError) as error:
        raise RankError(f"all steps have ended, but the rows could not be gathered: {error}") from error


def _fail(*_: object) -> NoReturn:
    """Fail, and so record an end: torchrun sends SIGTERM to a host's ranks when one has ended, and kills after 30 s."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise ConnectionError("torchrun ended the ranks of this host")


def _gather(everyone: Comms, attempt: Path, shares: bool) -> None:
    """Send this rank's files to rank 0, unless its folder is theirs."""
    paths = [attempt / f"{kind}.rank{everyone.rank}.jsonl" for kind in ROWS]
    files = {path.name: path.stat().st_size for path in paths if path.exists() and not shares}
    for sender, sizes in enumerate(everyone.all_gather(files)):
        for name, nbytes in sizes.items():
            if everyone.rank == 0:
                with (attempt / name).open("wb") as file:
                    for start in range(0, nbytes, _BLOCK):
                        size = min(_BLOCK, nbytes - start)
                        file.write(everyone.recv_tensor([size], sender, dtype=torch.uint8).numpy().tobytes())
            elif everyone.rank == sender:
                with (attempt / name).open("rb") as file:
                    while block := file.read(_BLOCK):
                        everyone.send_tensor(torch.frombuffer(bytearray(block), dtype=torch.uint8), 0)
    everyone.barrier()  # after it every file has arrived


# --- clocks --------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What is added to a moment of a host's clock, to have it on the clock of rank 0's host."""

    at_ns: int  # when it was read, on the host's own clock
    offset_ns: int  # what is added
    residual_ns: int  # by how much the offset may be wrong at most


def read_clocks(everyone: Comms, hosts: Hosts) -> list[Reading]:
    """Return the reading of every host; all ranks of all pipelines call this at the same time."""
    mine = Reading(perf_counter_ns(), 0, 0)
    firsts = [hosts.ranks(host)[0] for host in range(len(hosts.names))]
    for first in firsts[1:]:
        if everyone.rank == first:
            mine = min((_ask(everyone) for _ in range(_TURNS)), key=lambda reading: reading.residual_ns)
        elif everyone.rank == 0:
            for _ in range(_TURNS):
                everyone.recv_tensor([1], first, dtype=torch.int64)
                everyone.send_tensor(torch.tensor([perf_counter_ns()]), first)
    readings = everyone.all_gather(mine)
    return [Reading(*readings[first]) for first in firsts]


def _ask(everyone: Comms) -> Reading:
    asked = perf_counter_ns()
    everyone.send_tensor(torch.tensor([asked]), 0)
    time_there = int(everyone.recv_tensor([1], 0, dtype=torch.int64).item())
    answered = perf_counter_ns()
    return Reading(answered, time_there - (asked + answered) // 2, (answered - asked + 1) // 2)


def drift_ns(before: Reading, after: Reading, moment_ns: int) -> int:
    """Return what the offset at a moment, on the clock to which `before` converts, is more than that of `before`."""
    since = moment_ns - before.offset_ns - before.at_ns
    return (after.offset_ns - before.offset_ns) * since // max(1, after.at_ns - before.at_ns)
