"""Measures the time that the harness itself takes, with stages that do nothing: `python -m microp.null_stages`.

::

    rank 0   |F0|F1|F2|...|B0|B1|...      stages pass their tensor through: a step of M = 64 is
    rank 1      |F0|F1|...                128 actions per rank and the transfers between them

    one microbatch   F0 ─► F1 ─ B1 ─► B0  four actions and two transfers, one after the other

This is measured for each transport, and for torch.distributed.pipelining over gloo with the same stages. The
time to start and end the ranks of a point is measured in a sweep and with a torchrun process. With `--busy`, shared
memory is compared with gloo while other processes, the neighbours, compute without a pause::

    launch 1    0 neighbours           1 neighbour            2 ...
                shm gloo shm gloo ...  shm gloo shm gloo ...             the transports take turns
    launch 2    ...
                gloo shm gloo shm ...

The times of a launch are those of its slowest rank; a ratio is of two times of one launch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from microp.commands.self_checks import JOB
from microp.comms import Comms, GroupComms
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
FEW = (1, 16)  # with neighbours: one microbatch there and back; a step in which ranks have messages under way
BOTH = ("shm", "gloo")
TURNS = 5  # of each transport in a launch
STEPS = {1: 8, 16: 3}  # chunks -> the steps of a turn
START_S = 1.0  # until the neighbours compute, and the ranks have noticed
NEIGHBOUR = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10_000))"
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
    parser.add_argument("--busy", type=int, nargs="+", metavar="N", help="compare shm with gloo beside N processes")
    parser.add_argument("--launches", type=count, default=10, help="with --busy (default: 10)")
    options = parser.parse_args(arguments)
    if options.busy is not None:
        print("\n".join(beside_neighbours(options.busy, options.launches)))
        return 0
    print(f"{'':14}{f'per action, M={MANY}':>20}{'one microbatch there and back':>32}")
    for row in transports(options.steps):
        print(f"{row['transport']:14}{row['per action']:17.1f} µs{row['there and back']:29.0f} µs")
    print(f"two ranks, GPipe, tensors of {prod(SHAPE) * 4:,} bytes, medians of {options.steps} steps")
    for name, seconds in starts().items():
        print(f"start and end of a point, {name}: {seconds:.2f} s")
    return 0


# --- alone ----------------------------------------------------------------------------------------


def null_step(engine: str, chunks: int, comms: Comms) -> Callable[[], float]:
    """Return a function that runs a step over one null stage per rank; it returns this rank's time in microseconds."""
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
    weights = [1.0] * chunks

    def step() -> float:
        stages[comms.rank].load(Batch(0, tensors, tensors, weights))
        comms.barrier()
        began = perf_counter_ns()
        runner.step(0)
        return (perf_counter_ns() - began) / 1e3

    return step


def measure(engine: str, chunks: int, steps: int, comms: Comms) -> float:
    """Return the median time of a step over null stages on this rank, in microseconds."""
    step = null_step(engine, chunks, comms)
    return median([step() for _ in range(steps + 5)][5:])


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
            ranks = launch_ranks(job, Path(folder), 5, partial(on_a_rank, steps))
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


# --- beside neighbours ----------------------------------------------------------------------------


def beside_neighbours(neighbours: Sequence[int], launches: int) -> list[str]:
    """Return the lines of a table: the times of a step of two ranks for each number of microbatches and neighbours."""
    rows = []
    for number in range(launches):
        job = replace(JOB, schedule=gpipe(2, 2), backend="shm")
        with tempfile.TemporaryDirectory() as folder:
            results = launch_ranks(job, Path(folder), 5, partial(_times_of_a_rank, neighbours, number % 2))
        for busy, chunks in product(neighbours, FEW):
            row: dict[str, float] = {"chunks": chunks, "busy": busy}
            for transport, name in enumerate(BOTH):
                steps = np.max([times[busy, chunks][transport] for times in results.values()], axis=0)
                row[name], row[f"{name} 90"] = np.percentile(steps, [50, 90])
            rows.append(row)
    lines = [f"{'M':>4}{'busy':>6}{'n':>4}{'shm µs':>18}{'gloo µs':>18}{'shm / gloo':>22}{'of 90 %':>22}"]
    for (of_chunks, of_busy), own in pd.DataFrame(rows).groupby(["chunks", "busy"]):
        line = f"{of_chunks:4}{of_busy:6}{len(own):4}"
        for name in BOTH:
            cell = f"{own[name].median():.0f} ({own[f'{name} 90'].median():.0f})"
            line += f"{cell:>18}"
        for which in ("", " 90"):
            ratios = own[f"shm{which}"] / own[f"gloo{which}"]
            cell = f"{ratios.median():.2f} [{ratios.min():.2f}, {ratios.max():.2f}]"
            line += f"{cell:>22}"
        lines.append(line)
    return [*lines, "a step: median (90th percentile) of a launch, in the median of n launches; ratios: median [range]"]


def _times_of_a_rank(
    neighbours: Sequence[int], first: int, _job: Job, comms: Comms, _local: int, _at: Path
) -> dict[tuple[int, int], list[list[float]]]:
    """Return (neighbours, chunks) -> the times of the steps on each of `BOTH`, in microseconds."""
    both = (comms, GroupComms(comms.device, comms.timeout_s))
    steps = {chunks: [null_step("microp", chunks, transport) for transport in both] for chunks in FEW}
    times: dict[tuple[int, int], list[list[float]]] = {}
    for busy in neighbours:
        with _neighbours(busy if comms.rank == 0 else 0):
            comms.barrier()
            for chunks in FEW:
                taken: list[list[float]] = [[], []]
                for turn in range(-1, TURNS):
                    for which in (first, 1 - first):
                        turns = [steps[chunks][which]() for _ in range(STEPS[chunks])]
                        taken[which] += turns if turn >= 0 else []
                times[busy, chunks] = taken
    return times


@contextmanager
def _neighbours(count: int) -> Iterator[None]:
    """Let `count` processes compute meanwhile; they end with this process."""
    running = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(count)]
    time.sleep(START_S * bool(running))
    try:
        yield
    finally:
        for neighbour in running:
            neighbour.kill()
            neighbour.wait()
