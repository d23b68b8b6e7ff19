"""Measures the time that the harness itself takes, with stages that do nothing.

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
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
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
from microp.worker import launch_ranks

MANY = 64  # microbatches


def null_step(engine: str, chunks: int, shape: tuple[int, int], comms: Comms) -> Callable[[], float]:
    """Return a function that runs a step over one null stage per rank; it returns this rank's time in microseconds."""
    schedule = gpipe(comms.world_size, chunks)
    loss = (lambda output, _target: output.sum()) if comms.rank == comms.world_size - 1 else None
    stages = {comms.rank: Stage([nn.Identity()], loss, NEVER, chunks)}
    boundary = Boundary(lambda _rows, _stage: shape, lambda _stage: torch.float32)
    device = open_device(JOB.device, JOB.workload, comms, comms.rank)
    rows = [shape[0]] * chunks
    runner: Runner
    if engine == "torch":
        runner = TorchEngine(schedule, schedule, stages, comms, device, boundary, rows, NEVER)
    else:
        runner = Engine(schedule, stages, comms, device, boundary, rows)
    tensors = [torch.zeros(shape, requires_grad=True) for _ in range(chunks)]
    weights = [1.0] * chunks

    def step() -> float:
        stages[comms.rank].load(Batch(0, tensors, tensors, weights))
        comms.barrier()
        began = perf_counter_ns()
        runner.step(0)
        return (perf_counter_ns() - began) / 1e3

    return step


def measure(engine: str, chunks: int, shape: tuple[int, int], steps: int, comms: Comms) -> float:
    """Return the median time of a step over null stages on this rank, in microseconds."""
    step = null_step(engine, chunks, shape, comms)
    return median([step() for _ in range(steps + 5)][5:])


def on_a_rank(shape: tuple[int, int], steps: int, _job: Job, comms: Comms, _local: int, _at: Path) -> dict[str, Any]:
    """Return the step times with one microbatch and with `MANY`, of each engine on this transport; microseconds."""
    engines = ("microp", "torch") if _job.backend == "gloo" else ("microp",)
    return {engine: [measure(engine, chunks, shape, steps, comms) for chunks in (1, MANY)] for engine in engines}


def transports(shape: tuple[int, int], steps: int) -> list[dict[str, Any]]:
    """Return one row per transport and one for torch, with times in microseconds."""
    rows = []
    for backend in ("shm", "tcp", "gloo"):
        job = replace(JOB, schedule=gpipe(2, 2), backend=backend)
        with tempfile.TemporaryDirectory() as folder:
            ranks = launch_ranks(job, Path(folder), 5, partial(on_a_rank, shape, steps))
        for engine in ranks[0]:
            one, many = (max(ranks[rank][engine][which] for rank in ranks) for which in (0, 1))
            name = backend if engine == "microp" else "torch (gloo)"
            rows.append({"transport": name, "per action": many / (2 * MANY), "there and back": one})
    return rows


def starts(points: int) -> dict[str, float]:
    """Return the seconds that a point takes in addition to its steps, with W&B: in a sweep, and with torchrun.

    A sweep has at least 3 points: the first one loads what all need, the last has no successor.
    """
    took = {}
    for ranks in (2, 8):
        with tempfile.TemporaryDirectory() as folder:
            _run(["-m", "microp.run", "-m", f"repeat=range({points})", f"ranks={ranks}"], folder)
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
