"""`python -m microp.null_stages`: what the harness itself costs, with stages that do nothing.

::

    rank 0   |F0|F1|F2|...|B0|B1|...      stages pass their tensor through: a step of M = 64 is
    rank 1      |F0|F1|...                128 actions a rank and the transfers between them

    one microbatch   F0 ─► F1 ─ B1 ─► B0  four actions and two transfers, one after the other

For each transport, and for torch.distributed.pipelining over gloo with the same stages. Last,
what starting and ending the ranks of a point costs, beside a torchrun process for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from microp import launch
from microp.check import PLAN
from microp.comms import Comms
from microp.engine import Boundary, Engine
from microp.peer import TorchEngine
from microp.plan import Plan
from microp.records import read_rows
from microp.schedules import gpipe
from microp.stage import Batch, Checkpointing, Stage
from microp.train import Runner

MANY = 64  # microbatches
NEVER = Checkpointing("never", 0, False)


def measure(engine: str, chunks: int, shape: tuple[int, int], steps: int, comms: Comms) -> float:
    """The median time of a step over two null stages, on this rank, in microseconds."""
    schedule = gpipe(2, chunks)
    loss = (lambda output, _target: output.sum()) if comms.rank == 1 else None
    stages = {comms.rank: Stage([nn.Identity()], loss, NEVER, chunks)}
    boundary, device = Boundary(lambda _rows: shape, torch.float32), PLAN.device.open(comms.rank, PLAN.workload)
    rows = [shape[0]] * chunks
    runner: Runner
    if engine == "torch":
        runner = TorchEngine(schedule, stages, comms, device, boundary, rows, NEVER)
    else:
        runner = Engine(schedule, stages, comms, device, boundary, rows)
    tensors = [torch.zeros(shape, requires_grad=True) for _ in range(chunks)]
    times = []
    for step in range(steps + 5):
        stages[comms.rank].load(Batch(step, tensors, tensors, [1.0] * chunks))
        comms.barrier()
        began = perf_counter_ns()
        runner.step(step)
        times.append((perf_counter_ns() - began) / 1e3)
    return median(times[5:])


def on_a_rank(shape: tuple[int, int], steps: int, _plan: Plan, comms: Comms, _local: int, _at: Path) -> dict[str, Any]:
    """(one microbatch, many) of each engine that this launch's transport can carry; in microseconds."""
    engines = ("microp", "torch") if _plan.backend == "gloo" else ("microp",)
    return {engine: [measure(engine, chunks, shape, steps, comms) for chunks in (1, MANY)] for engine in engines}


def transports(shape: tuple[int, int], steps: int) -> list[dict[str, Any]]:
    """A row for each transport, and one for torch."""
    rows = []
    for backend in ("shm", "gloo"):
        plan = replace(PLAN, schedule=gpipe(2, 2), backend=backend)
        with tempfile.TemporaryDirectory() as folder:
            ranks = launch.run_elastic(plan, Path(folder), 5, partial(on_a_rank, shape, steps))
        for engine in ranks[0]:
            one, many = (max(ranks[rank][engine][which] for rank in ranks) for which in (0, 1))
            name = backend if engine == "microp" else "torch (gloo)"
            rows.append({"transport": name, "per action": many / (2 * MANY), "there and back": one})
    return rows


def starts() -> dict[str, float]:
    """Seconds that a point costs beside its steps, W&B included: points of a sweep, and a torchrun for one."""
    took = {}
    for ranks in (2, 8):
        with tempfile.TemporaryDirectory() as folder:
            _run(["-m", "microp.run", "-m", "repeat=0,1,2,3,4", f"ranks={ranks}"], folder)
            points = sorted(_point(path) for path in Path(folder).glob("runs/*/attempt-1"))
        rest = [after - started - steps for (started, steps), (after, _) in pairwise(points)]
        took[f"{ranks} ranks, from the second point on"] = median(rest[1:])  # the first loads what all need
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _run(["-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "microp.run"], folder)
        return {**took, "2 ranks, a torchrun for it": time.perf_counter() - began}


def _run(command: list[str], folder: str) -> None:
    small = ["steps=1", "warmup_steps=0", "model.dim=32", f"output_dir={folder}"]
    done = subprocess.run([sys.executable, *command, *small], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")


def _point(attempt: Path) -> tuple[float, float]:
    """When a point began, and how long its steps took; in seconds."""
    status, steps = json.loads((attempt / "status.json").read_text()), read_rows(attempt, 0)
    return status["started"], (steps[-1]["ended_ns"] - steps[0]["began_ns"]) / 1e9


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m microp.null_stages", description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=int, default=8, help="of a microbatch (8)")
    parser.add_argument("--dim", type=int, default=128, help="numbers a row (128)")
    parser.add_argument("--steps", type=int, default=100, help="that are measured (100)")
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value < 1:
            parser.error(f"--{name}={value} is below 1: use at least 1")
    rows = transports((options.rows, options.dim), options.steps)
    print(f"{'':14}{f'an action, M={MANY}':>20}{'one microbatch there and back':>32}")
    for row in rows:
        print(f"{row['transport']:14}{row['per action']:17.1f} µs{row['there and back']:29.0f} µs")
    print(f"two ranks, GPipe, tensors of {options.rows * options.dim * 4:,} bytes, medians of {options.steps} steps")
    for name, seconds in starts().items():
        print(f"start and end of a point, {name}: {seconds:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
