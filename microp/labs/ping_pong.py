"""Lab 5: ranks, the world, and the time of a message.

    OMP_NUM_THREADS=1 torchrun --nproc_per_node=2 -m microp.labs.ping_pong

::

    rank 0   send ──────► │               │ ──► recv    one way:
    rank 1          recv ─┘ ──► send ─────┘     latency + bytes / bandwidth

torchrun starts separate processes and gives each its RANK and the WORLD_SIZE; `init_process_group` connects them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from microp.comms import Comms, Message, init_process_group
from microp.config import job_of
from microp.job import Job
from microp.labs.typed import about_cores, flags_of, parser_of, say
from microp.system import MIB, is_joined, queued_ns, run_command
from microp.terminal import console
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


def play(_job: Job | None, comms: Comms, _local_rank: int = 0, _attempt: Path | None = None) -> str:
    """Send messages over TCP, then through shared memory, and return the times on rank 0 as text."""
    around = {"after": comms.get_prev_rank(), "before": comms.get_next_rank()}
    neighbours = " and ".join(f"{side} rank {rank}" for side, rank in around.items() if rank is not None)
    who = "; ".join(comms.all_gather(f"rank {comms.rank} is process {os.getpid()}, {neighbours}"))
    mean = comms.all_reduce_mean(torch.tensor([float(comms.rank)])).item()
    began, queued = time.perf_counter_ns(), queued_ns()
    tcp = [there_and_back(comms, nbytes) for nbytes in SIZES]
    comms.expect([Message(0, 1, 0, SIZES[-1], 0), Message(1, 0, 0, SIZES[-1], 0)])
    there_and_back(comms, SIZES[0])  # the first waits last longer: how they wait adapts to the machine
    shm = [there_and_back(comms, nbytes) for nbytes in SIZES]
    share = (queued_ns(queued) or 0) / (time.perf_counter_ns() - began)
    most = comms.all_reduce(torch.tensor([share]), "max").item()
    text = f"world of {comms.world_size}: {who}\nall-reduce: now every rank has the mean of their numbers, {mean:g}\n\n"
    text += "      KiB   gloo µs    MiB/s    shared memory µs    MiB/s\n"
    for nbytes, slow, fast in zip(SIZES, tcp, shm, strict=True):
        mib = nbytes / MIB
        text += f"{nbytes / 1024:9.0f}{slow * 1e6:10.0f}{mib / slow:9.0f}{fast * 1e6:20.0f}{mib / fast:9.0f}\n"
    text += "\nOne way, medians of 20 turns. Latency limits small messages, bandwidth large ones.\n"
    text += (
        "The rate falls again where a message is too large for the processor's caches, or other work needs the cores."
    )
    return text + about_cores(most) if comms.rank == 0 else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Play as a rank of torchrun; without torchrun start two ranks, which play."""
    flags_of(parser_of("ping_pong", __doc__), arguments)
    if is_joined():
        comms = init_process_group("shm", torch.device("cpu"), 60)
        text = play(None, comms)
        comms.close()
    else:
        with tempfile.TemporaryDirectory() as folder, console.status("two processes start and play"):
            text = launch_ranks(job_of("ranks=2"), Path(folder), play)[0]
    if text:
        say(text)


if __name__ == "__main__":
    run_command(main)
