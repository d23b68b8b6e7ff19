"""Measures the time that the harness itself takes, with stages that do nothing: `python -m microp.null_stages`.

::

    rank 0   |F0|F1|F2|...|B0|B1|...      stages pass their tensor through: a step of M = 64 is
    rank 1      |F0|F1|...                128 actions per rank and the transfers between them

    one microbatch   F0 ─► F1 ─ B1 ─► B0  four actions and two transfers, one after the other

This is measured for each transport, and for torch.distributed.pipelining over gloo with the same stages. The
time to start and end the ranks of a point is measured in a sweep and with a torchrun process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from microp.commands.self_checks import JOB
from microp.comms import Comms
from microp.device import open_device
from microp.engine import Boundary, Engine, Runner, TorchEngine
from microp.job import Job
from microp.model import Batch, Stage
from microp.records import read_rows
from microp.schedule.builders import gpipe
from microp.settings import NEVER
from microp.system import CommandParser
from microp.worker import launch_ranks

MANY = 64  # microbatches
WARMUP = 5  # steps that are not measured
SHAPE = 8, 128  # rows of a microbatch, numbers per row
POINTS = 5  # of a sweep: the first one loads what all need, the last has no successor


def main(arguments: list[str] | None = None) -> int:
    """Measure stages that do nothing on every transport, and the start and end of a point; print the times."""

    def count(text: str) -> int:
        if (value := int(text)) < 1:
            raise ArgumentTypeError(f"{value} is below 1: use at least 1")
        return value

    parser = CommandParser(prog="python -m microp.null_stages", description=main.__doc__)
    parser.add_argument("--steps", type=count, default=100, help="measured steps (default: 100)")
    options = parser.parse_args(arguments)
    print(f"{'':14}{f'per action, M={MANY}':>20}{'one microbatch there and back':>32}")
    for row in transports(options.steps):
        print(f"{row['transport']:14}{row['per action']:17.1f} µs{row['there and back']:29.0f} µs")
    print(f"two ranks, GPipe, tensors of {prod(SHAPE) * 4:,} bytes, medians of {options.steps} steps")
    for name, seconds in starts().items():
        print(f"start and end of a point, {name}: {seconds:.2f} s")
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


def transports(steps: int) -> list[dict[str, Any]]:
    """Return one row per transport and one for torch, with times in microseconds."""
    rows = []
    for backend in ("shm", "tcp", "gloo"):
        job = replace(JOB, schedule=gpipe(2, 2), backend=backend)
        with tempfile.TemporaryDirectory() as folder:
            ranks = launch_ranks(job, Path(folder), partial(on_a_rank, steps))
        for engine in ranks[0]:
            one, many = (max(ranks[rank][engine][which] for rank in ranks) for which in (0, 1))
            name = backend if engine == "microp" else "torch (gloo)"
            rows.append({"transport": name, "per action": many / (2 * MANY), "there and back": one})
    return rows


def starts() -> dict[str, float]:
    """Return the seconds that a point takes in addition to its steps, with W&B: in a sweep, and with torchrun."""
    took = {}
    for ranks in (2, 8):
        with tempfile.TemporaryDirectory() as folder:
            _run(["-m", "microp.run", "-m", f"repeat=range({POINTS})", f"ranks={ranks}"], folder)
            timed = sorted(_point(path) for path in Path(folder).glob("runs/*/attempt-1"))
        rest = [after - started - steps for (started, steps), (after, _) in pairwise(timed)]
        took[f"{ranks} ranks, in a sweep"] = median(rest[1:])
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _run(["-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "microp.run"], folder)
        return {**took, "2 ranks, with torchrun": time.perf_counter() - began}


def _run(command: list[str], folder: str) -> None:
    small = ["steps=1", "warmup_steps=0", "model.dim=32", f"output_dir={folder}"]
    done = subprocess.run([sys.executable, *command, *small], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")


def _point(attempt: Path) -> tuple[float, float]:
    """Return the start of a point and the time of its steps, in seconds."""
    status, steps = json.loads((attempt / "status.json").read_text()), read_rows(attempt, 0)
    return status["started"], (steps[-1]["ended_ns"] - steps[0]["began_ns"]) / 1e9
