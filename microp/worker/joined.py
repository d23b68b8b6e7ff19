"""Runs this process as one rank of a launch that torchrun made, and gathers the rows of all hosts.

::

    run_rank, which writes to a folder of this host ── fails ──► the ranks of all hosts tell each other why
    compares the clocks again
    rank 2, on h1   rows, moments shifted ──► blocks ──► rank 0's folder, on h0
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from microp.comms import Comms, Hosts
from microp.job import Job
from microp.records import (
    HOSTS,
    ROWS,
    WriteError,
    read_errors,
    shift_moments,
    write_json,
    write_text,
)
from microp.worker.clocks import Reading, drift_ns, read_clocks
from microp.worker.failure import RankError, error_of
from microp.worker.meeting import Joined
from microp.worker.rank import run_rank

_BLOCK = 4 << 20  # bytes of a file that are sent at once
_ERRORS_S, _POLL_S = 2.0, 0.1  # in which ranks of other hosts tell their errors


def run_joined(job: Job, joined: Joined, attempt: Path) -> None:
    """Run one rank, which writes into a folder of this host.

    Raises:
        RankError: this rank failed, or another one of its host, which is then named.
        WriteError: the rows cannot be written.
    """
    clock = joined.clocks[joined.host]
    signal.signal(signal.SIGTERM, _fail)
    try:
        run_rank(job, joined.comms, int(os.environ["LOCAL_RANK"]), attempt, clock.offset_ns)
    except WriteError:
        raise
    except Exception as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows records this end
        _exchange_errors(joined, attempt)
        raise why_failed(attempt, str(error)) from error


def _fail(*_: object) -> NoReturn:
    """Fail, and so record an end: torchrun sends SIGTERM to a host's ranks when one has ended, and kills after 30 s."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise ConnectionError("torchrun ended the ranks of this host")


def _exchange_errors(joined: Joined, attempt: Path) -> None:
    """Tell the other hosts this rank's error, and get theirs, as far as the store of the launch can be reached.

    A rank that has only lost another one waits a moment, because that one may tell why. A thread does it, since a
    store whose host was cut off does not answer, whatever its time-out.
    """
    if not joined.hosts.are_several:
        return
    own, store = joined.everyone.rank, joined.store

    def exchange() -> None:
        with suppress(RuntimeError, OSError):
            store.set(f"microp/error/{own}", (attempt / f"error.rank{own}.json").read_text())
            while all(error["lost_peer"] for error in read_errors(attempt)):
                for rank, host in enumerate(joined.hosts.of):
                    path, key = attempt / f"error.rank{rank}.json", f"microp/error/{rank}"
                    if host != joined.host and not path.exists() and store.check([key]):
                        write_text(path, store.get(key).decode())
                time.sleep(_POLL_S)

    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(_ERRORS_S)


def why_failed(attempt: Path, otherwise: str) -> RankError | WriteError:
    """Return the error of the rank that failed first, of those that write to the folder."""
    written = read_errors(attempt)
    if not written:
        return RankError(otherwise)
    return error_of(written[0], attempt / f"error.rank{written[0]['world_rank']}.json")


def gather_rows(joined: Joined, attempt: Path, shares: bool) -> None:
    """Bring the rows of the ranks of other hosts into the folder of rank 0, with times on the clock of its host.

    All ranks have ended their last step. `shares` says whether `attempt`, the folder on this host, is that of rank 0,
    on a file system that the hosts share.

    Raises:
        RankError: another host cannot be reached any more; the rows are where they were.
    """
    try:
        if joined.hosts.are_several:
            _gather(joined, attempt, shares)
    except (TimeoutError, ConnectionError) as error:
        raise RankError(f"all steps have ended, but the rows could not be gathered: {error}") from error


def _gather(joined: Joined, attempt: Path, shares: bool) -> None:
    everyone, rank = joined.everyone, joined.everyone.rank
    before, after = joined.clocks, read_clocks(joined.everyone, joined.hosts)
    mine = before[joined.host], after[joined.host]
    if joined.host:
        shift_moments(attempt, rank, lambda moment: moment + drift_ns(*mine, moment))
    own = [path for kind in ROWS if (path := attempt / f"{kind}.rank{rank}.jsonl").exists()]
    files = everyone.all_gather({} if shares else {path.name: path.stat().st_size for path in own})
    for sender, theirs in enumerate(files):
        for name, nbytes in theirs.items():
            if rank == 0:
                _receive(everyone, attempt / name, sender, nbytes)
            elif rank == sender:
                _send(everyone, attempt / name, nbytes)
    if rank == 0:
        write_json(attempt / HOSTS, _about(joined.hosts, before, after))
    everyone.all_gather(None)  # after it every file has arrived


def _send(everyone: Comms, path: Path, nbytes: int) -> None:
    with path.open("rb") as file:
        for _ in range(0, nbytes, _BLOCK):
            everyone.send_tensor(torch.frombuffer(bytearray(file.read(_BLOCK)), dtype=torch.uint8), 0)


def _receive(everyone: Comms, path: Path, sender: int, nbytes: int) -> None:
    with path.open("wb") as file:
        for start in range(0, nbytes, _BLOCK):
            block = everyone.recv_tensor([min(_BLOCK, nbytes - start)], sender, dtype=torch.uint8)
            file.write(block.numpy().tobytes())


def _about(hosts: Hosts, before: list[Reading], after: list[Reading]) -> list[dict[str, Any]]:
    """Return what is recorded of each host: its name, its ranks, and how its clock was compared with rank 0's."""
    return [
        {
            "host": name,
            "ranks": hosts.ranks(number),
            "clock_offset_ns": before[number].offset_ns,
            "clock_drift_ns": after[number].offset_ns - before[number].offset_ns,
            "clock_residual_ns": max(before[number].residual_ns, after[number].residual_ns),
        }
        for number, name in enumerate(hosts.names)
    ]
