"""Compares shared memory with gloo on null stages while other processes compute.

::

    launch 1    0 neighbours           1 neighbour            2 ...
                shm gloo shm gloo ...  shm gloo shm gloo ...             the transports take turns
    launch 2    ...
                gloo shm gloo shm ...

A neighbour is a process that computes without a pause. The times of a launch are those of its slowest rank; a ratio is
of two times of one launch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from microp.commands.overheads import null_step
from microp.commands.self_checks import JOB
from microp.comms import Comms, GroupComms
from microp.job import Job
from microp.schedule import uniform
from microp.schedule.builders import gpipe
from microp.worker import launch_ranks

CHUNKS = (1, 16)  # one microbatch there and back; a step in which ranks have messages under way
TURNS = 5  # of each transport in a launch
STEPS = {1: 8, 16: 3}  # chunks -> the steps of a turn
START_S = 1.0  # until the neighbours compute, and the ranks have noticed
NEIGHBOUR = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10_000))"


class Times(NamedTuple):
    """The times of a step of one launch on both transports, in microseconds, and what belongs to them."""

    ranks: int
    chunks: int
    neighbours: int
    shm: tuple[float, float]  # the median and the 90th percentile
    gloo: tuple[float, float]


def launches(
    ranks: Sequence[int], neighbours: Sequence[int], rounds: int, shape: tuple[int, int], minutes: float
) -> Iterator[list[Times]]:
    """Yield the times of each launch, `rounds` for each number of ranks; no launch begins after `minutes`."""
    end = time.monotonic() + 60 * minutes
    for number, count in ((number, count) for number in range(rounds) for count in ranks):
        if time.monotonic() > end:
            return
        job = replace(JOB, schedule=gpipe(count, 2), partition=uniform(8, count), backend="shm")
        with tempfile.TemporaryDirectory() as folder:
            found = launch_ranks(job, Path(folder), 5, partial(_on_a_rank, shape, neighbours, number % 2))
        yield [
            Times(
                count,
                chunks,
                busy,
                *(_slowest([own[busy, chunks][which] for own in found.values()]) for which in (0, 1)),
            )
            for busy in neighbours
            for chunks in CHUNKS
        ]


def show(found: Iterator[list[Times]]) -> int:
    """Print the table of all launches, after Ctrl-C that of those that have ended; return the exit code."""
    times: list[Times] = []
    code = 0
    try:
        for launch in found:
            times += launch
    except KeyboardInterrupt:
        code = 130
    print("\n".join(table(times)))
    return code


def table(times: Sequence[Times]) -> list[str]:
    """Return a line per ranks, chunks and neighbours: medians over the launches, and the paired ratios with range."""
    lines = [f"{'ranks':>5}{'M':>4}{'busy':>6}{'n':>4}{'shm µs':>18}{'gloo µs':>18}{'shm / gloo':>22}{'of 90 %':>22}"]
    for key in sorted({each[:3] for each in times}):
        own = [each for each in times if each[:3] == key]
        shm, gloo = (np.array([each[which] for each in own]) for which in (3, 4))
        spans = np.percentile(shm / gloo, [50, 0, 100], axis=0).T
        cells = [f"{middle:.0f} ({high:.0f})" for middle, high in (np.median(shm, axis=0), np.median(gloo, axis=0))]
        ratios = [f"{middle:.2f} [{low:.2f}, {high:.2f}]" for middle, low, high in spans]
        lines.append(
            f"{key[0]:5}{key[1]:4}{key[2]:6}{len(own):4}{cells[0]:>18}{cells[1]:>18}{ratios[0]:>22}{ratios[1]:>22}"
        )
    return [
        *lines,
        "a step over null stages: median (90th percentile) of a launch, in the median of n launches; "
        "ratios: median [range]",
    ]


def _on_a_rank(
    shape: tuple[int, int], neighbours: Sequence[int], first: int, _job: Job, comms: Comms, _local: int, _at: Path
) -> dict[tuple[int, int], list[list[float]]]:
    """Return (neighbours, chunks) -> the times of the steps over shared memory, and over gloo, in microseconds."""
    both = (comms, GroupComms(comms.device, comms.timeout_s))
    steps = {chunks: [null_step("microp", chunks, shape, each) for each in both] for chunks in CHUNKS}
    times: dict[tuple[int, int], list[list[float]]] = {}
    for busy in neighbours:
        with _neighbours(busy if comms.rank == 0 else 0):
            comms.barrier()
            for chunks in CHUNKS:
                own: list[list[float]] = [[], []]
                for turn in range(-1, TURNS):
                    for which in (first, 1 - first):
                        took = [steps[chunks][which]() for _ in range(STEPS[chunks])]
                        own[which] += took if turn >= 0 else []
                times[busy, chunks] = own
    return times


def _slowest(ranks: list[list[float]]) -> tuple[float, float]:
    """Return the median and the 90th percentile of the steps, from the times of each rank."""
    steps = [max(step) for step in zip(*ranks, strict=True)]
    return median(steps), float(np.percentile(steps, 90))


@contextmanager
def _neighbours(count: int) -> Iterator[None]:
    """Let `count` processes compute meanwhile; they end with this process."""
    running = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(count)]
    time.sleep(START_S * bool(running))
    try:
        yield
    finally:
        for each in running:
            each.kill()
        for each in running:
            each.wait()
