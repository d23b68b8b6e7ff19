"""Measures the time that the harness itself takes, with stages that do nothing: `python -m microp.null_stages`.

::

    rank 0   |F0|F1|F2|...|B0|B1|...      stages pass their tensor through: a step of M = 64 is
    rank 1      |F0|F1|...                128 actions per rank and the transfers between them

    one microbatch   F0 ─► F1 ─ B1 ─► B0  four actions and two transfers, one after the other

This is measured for each transport, and for torch.distributed.pipelining over gloo with the same stages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from microp.commands.importing import count
from microp.commands.self_checks import JOB
from microp.comms import Comms
from microp.device import open_device
from microp.engine import Boundary, Engine, Runner, TorchEngine
from microp.job import Job
from microp.model import Batch, Stage
from microp.schedule.builders import gpipe
from microp.settings import NEVER
from microp.system import CommandParser
from microp.worker import launch_ranks

MANY = 64  # microbatches
WARMUP = 5  # steps that are not measured
SHAPE = 8, 128  # rows of a microbatch, numbers per row


def main(arguments: list[str] | None = None) -> int:
    """Measure stages that do nothing on every transport, and print the times."""
    parser = CommandParser(prog="python -m microp.null_stages", description=main.__doc__)
    parser.add_argument("--steps", type=count, default=100, help="measured steps (default: 100)")
    options = parser.parse_args(arguments)
    print(f"{'':14}{f'per action, M={MANY}':>20}{'one microbatch there and back':>32}")
    for name, per_action, there_and_back in transports(options.steps):
        print(f"{name:14}{per_action:17.1f} µs{there_and_back:29.0f} µs")
    print(f"two ranks, GPipe, tensors of {prod(SHAPE) * 4:,} bytes, medians of {options.steps} steps")
    return 0


def measure(engine: str, chunks: int, steps: int, comms: Comms) -> float:
    """Return the median time of a step over one null stage per rank, on this rank, in microseconds."""
    schedule = gpipe(comms.world_size, chunks)
    loss = (lambda output, _target: output.sum()) if comms.rank == comms.world_size - 1 else None
    stages = {comms.rank: Stage([nn.Identity()], loss, NEVER, chunks)}
    boundary = Boundary(lambda _rows, _stage: SHAPE, lambda _stage: torch.float32)
    device = open_device(JOB.device, JOB.workload, comms, comms.rank)
    rows = [SHAPE[0]] * chunks
    runner: Runner
    if engine == "torch":
        runner = TorchEngine(schedule, schedule, stages, comms, device, boundary, rows, NEVER)
    else:
        runner = Engine(schedule, stages, comms, device, boundary, rows)
    tensors = [torch.zeros(SHAPE, requires_grad=True) for _ in range(chunks)]
    taken = []
    for _ in range(steps + WARMUP):
        stages[comms.rank].load(Batch(0, tensors, tensors, [1.0] * chunks))
        comms.barrier()
        began = perf_counter_ns()
        runner.step(0)
        taken.append((perf_counter_ns() - began) / 1e3)
    return median(taken[WARMUP:])


def on_a_rank(steps: int, _job: Job, comms: Comms, _local: int, _at: Path) -> dict[str, Any]:
    """Return the step times with one microbatch and with `MANY`, of each engine on this transport; microseconds."""
    engines = ("microp", "torch") if _job.backend == "gloo" else ("microp",)
    return {engine: [measure(engine, chunks, steps, comms) for chunks in (1, MANY)] for engine in engines}


def transports(steps: int) -> Iterator[tuple[str, float, float]]:
    """Yield each transport, and torch, with the times per action and of one microbatch there and back, in µs."""
    for backend in ("shm", "tcp", "gloo"):
        job = replace(JOB, schedule=gpipe(2, 2), backend=backend)
        with tempfile.TemporaryDirectory() as folder:
            ranks = launch_ranks(job, Path(folder), partial(on_a_rank, steps))
        for engine in ranks[0]:
            one, many = (max(ranks[rank][engine][which] for rank in ranks) for which in (0, 1))
            yield backend if engine == "microp" else "torch (gloo)", many / (2 * MANY), one
