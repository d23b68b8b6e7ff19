"""Lab 5: ranks, the world, and the time of a message.

    torchrun --nproc_per_node=2 -m microp.labs.ping_pong

::

    rank 0   send ──────► │               │ ──► recv       there and back, 20 times:
    rank 1          recv ─┘ ──► send ─────┘                time = latency + bytes / bandwidth

torchrun starts separate processes and gives each its RANK and the WORLD_SIZE; `init_process_group` connects them.
Without torchrun the lab starts two ranks itself.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from microp.app import job_of
from microp.comms import Comms, Message, init_process_group
from microp.job import Job
from microp.settings import MIB, is_joined, run_command
from microp.worker import launch_ranks

SIZES = [2**power for power in range(10, 25, 2)]  # bytes
TURNS = 20


def there_and_back(comms: Comms, nbytes: int) -> float:
    """Return the seconds of one way, the median of TURNS round trips."""
    tensor, times = torch.zeros(nbytes // 4), []
    for _ in range(TURNS):
        comms.barrier()
        began = time.perf_counter()
        if comms.rank == 0:
            comms.isend_tensor(tensor, 1).wait()
            comms.irecv_tensor(tensor.shape, 1).wait()
        elif comms.rank == 1:
            comms.isend_tensor(comms.irecv_tensor(tensor.shape, 0).wait(), 0).wait()
        times.append(time.perf_counter() - began)
    return median(times) / 2


def play(comms: Comms) -> str:
    """Send messages over TCP, then through shared memory, and return the times on this rank as text."""
    me = f"rank {comms.rank} is process {os.getpid()}, between {comms.get_prev_rank()} and {comms.get_next_rank()}"
    who = "; ".join(comms.all_gather(me))
    mean = comms.all_reduce_mean(torch.tensor([float(comms.rank)])).item()
    tcp = [there_and_back(comms, nbytes) for nbytes in SIZES]
    comms.expect([Message(0, 1, 0, SIZES[-1], 0), Message(1, 0, 0, SIZES[-1], 0)])
    shm = [there_and_back(comms, nbytes) for nbytes in SIZES]
    lines = [
        f"world of {comms.world_size}: {who}\nall-reduce: now every rank has the mean of their numbers, {mean:g}\n",
        "      KiB   gloo µs    MiB/s    shared memory µs    MiB/s",
    ]
    for nbytes, slow, fast in zip(SIZES, tcp, shm, strict=True):
        rates = [nbytes / MIB / seconds for seconds in (slow, fast)]
        lines.append(f"{nbytes / 1024:9.0f}{slow * 1e6:10.0f}{rates[0]:9.0f}{fast * 1e6:20.0f}{rates[1]:9.0f}")
    return "\n".join([*lines, "\nOne way, medians of 20 turns. Latency limits small messages, bandwidth large ones."])


def entry(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    return play(comms)


def main() -> None:
    """Play as a rank of torchrun, or start two ranks; print the times of rank 0."""
    if is_joined():
        rank = init_process_group("shm", torch.device("cpu"), 60)
        text = play(rank)
        rank.close()
        print(text if rank.rank == 0 else "", end="\n" if rank.rank == 0 else "")
    else:
        with tempfile.TemporaryDirectory() as folder:
            print(launch_ranks(job_of("ranks=2"), Path(folder), 3, entry)[0])


if __name__ == "__main__":
    run_command(main)
