"""Lab 5: ranks, the world, and what a message costs.

    torchrun --nproc_per_node=2 -m microp.labs.ping_pong

::

    rank 0   send ──────► │               │ ──► recv       there and back, again and again:
    rank 1          recv ─┘ ──► send ─────┘                time = latency + bytes / bandwidth

torchrun starts separate processes, each with its own memory and interpreter, and tells each its
RANK and the WORLD_SIZE; `init_process_group` is dialing in. Without torchrun two ranks are started here.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from microp import launch
from microp.comms import Comms, Message, init_process_group
from microp.config import plan_of
from microp.plan import Plan

SIZES = [2**power for power in range(10, 25, 2)]  # bytes
TURNS = 20


def there_and_back(comms: Comms, nbytes: int) -> float:
    """Seconds of one way, the median of some turns."""
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
    """Play over TCP, then through shared memory; what rank 0 saw, as text."""
    who = ", ".join(f"rank {rank} is process {pid}" for rank, pid in enumerate(comms.all_gather(os.getpid())))
    tcp = [there_and_back(comms, nbytes) for nbytes in SIZES]
    comms.expect([Message(0, 1, 0, SIZES[-1], 0), Message(1, 0, 0, SIZES[-1], 0)])
    shm = [there_and_back(comms, nbytes) for nbytes in SIZES]
    lines = [f"world of {comms.world_size}: {who}\n", "      KiB   gloo µs    MiB/s    shared memory µs    MiB/s"]
    for nbytes, slow, fast in zip(SIZES, tcp, shm, strict=True):
        rates = [nbytes / 2**20 / seconds for seconds in (slow, fast)]
        lines.append(f"{nbytes / 1024:9.0f}{slow * 1e6:10.0f}{rates[0]:9.0f}{fast * 1e6:20.0f}{rates[1]:9.0f}")
    return "\n".join([*lines, "\nSmall messages cost latency, large ones bandwidth: one way, medians of 20 turns."])


def entry(_plan: Plan, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    return play(comms)


if __name__ == "__main__":
    if launch.joins():
        rank = init_process_group("shm", torch.device("cpu"), 60)
        text = play(rank)
        rank.close()
        print(text if rank.rank == 0 else "", end="\n" if rank.rank == 0 else "")
    else:
        with tempfile.TemporaryDirectory() as folder:
            print(launch.run_elastic(plan_of("ranks=2"), Path(folder), 3, entry)[0])
