"""Runs of many steps and sweeps of many points: what their processes hold at the end is what they held early on."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from user import ROOT

from microp.records import read_rows
from tests.soak import look
from tests.soak.faults import BACKENDS
from tests.soak.machine import Machine, Result, Usage, grown, usage, wait_until

STEPS = 100  # times --times
POINTS = 5  # times --times
SMALL = ("model.layers=4", "model.dim=32", "batch_size=8", "tracking=disabled")
LOOK_S = 0.1
SETTLED = 5  # points after which torch has loaded what it needs
LOOKS = "+hydra.callbacks.look._target_=tests.soak.look.Look"


def run_steps(machine: Machine, times: int) -> Iterator[Result]:
    """One run at K=4 on each transport; early is after a tenth of its steps."""
    steps = STEPS * times
    for backend in BACKENDS:
        folder = new_folder(machine)
        words = [*SMALL, "ranks=4", "schedule=1f1b", "chunks=4", f"steps={steps}", f"comms={backend}"]
        result = Result(f"{steps} steps, K=4", "", backend)
        problems, took = watch(machine, folder, words, lambda at=folder: rows_of(at, 0), steps)
        for rank in range(4):
            if rows_of(folder, rank) < steps:
                problems.append(f"rank {rank} has {rows_of(folder, rank)} rows")
        result.add(problems, took)
        result.notes = "the time of the run"
        yield result


def run_points(machine: Machine, times: int) -> Iterator[Result]:
    """One sweep with processes and one with threads; early is after a tenth of its points, at least after SETTLED."""
    points = POINTS * times // 2 * 2
    for comms in ("auto", "threads"):
        folder, known = new_folder(machine), set(machine.processes())
        sweep = ["chunks=2,4", f"repeat=range({points // 2})", f"comms={comms}"]
        began = time.monotonic()
        program = start(folder, ["-m", *SMALL, "steps=2", "warmup_steps=1", *sweep, LOOKS])
        problems = [f"exit code {code}: {last_line(folder)}"] if (code := program.wait()) else []
        looks = [json.loads(line) for line in (folder / look.FILE).read_text().splitlines()]
        problems += grown(looks, max(points // 10, SETTLED)) + unfinished(folder, points)
        if len(looks) != points:
            problems.append(f"{len(looks)} points were looked at")
        problems += still_there(machine, known)
        result = Result(f"{points} points", "", comms, notes="the time of the sweep")
        result.add(problems, time.monotonic() - began)
        yield result


def unfinished(folder: Path, points: int) -> list[str]:
    """What the last sweep's table lacks."""
    tables = sorted(folder.glob("outputs/sweeps/*/table.csv"), key=lambda path: path.stat().st_mtime)
    if not tables:
        return ["the sweep left no table"]
    with tables[-1].open() as file:
        statuses = [row["status"] for row in csv.DictReader(file)]
    done = statuses.count("finished")
    return [] if done == points == len(statuses) else [f"{done} of {len(statuses)} points finished, {points} planned"]


def new_folder(machine: Machine) -> Path:
    folder = machine.folder / "users" / str(time.monotonic_ns())
    folder.mkdir(parents=True)
    return folder


def rows_of(folder: Path, rank: int) -> int:
    """The number of rows that a rank of the only run has written so far."""
    return sum(len(read_rows(attempt, rank)) for attempt in folder.glob("outputs/runs/*/attempt-1"))


def start(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start microp as a user does; what it prints goes into `output.txt`."""
    command = [sys.executable, "-m", "microp.run", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)


def watch(
    machine: Machine, folder: Path, words: Sequence[str], done: Callable[[], int], whole: int
) -> tuple[list[str], float]:
    """Run a command; compare what each of its processes holds after a tenth with what it holds at its last look."""
    known, began = set(machine.processes()), time.monotonic()
    program = start(folder, words)
    early: dict[int, Usage] = {}
    late: dict[int, Usage] = {}
    while program.poll() is None:
        time.sleep(LOOK_S)
        if done() < max(1, whole // 10):
            continue
        now = {pid: held for pid in started_since(machine, known) if (held := usage(pid))}
        for pid, held in now.items():
            early.setdefault(pid, held)
        if done() < whole:
            late = now
    took = time.monotonic() - began
    problems = [f"exit code {program.returncode}: {last_line(folder)}"] if program.returncode else []
    if not late:
        problems.append("it ended before anything could be compared")
    for pid, held in late.items():
        problems += held.more_than(early[pid])
    return problems + still_there(machine, known), took


def last_line(folder: Path) -> str:
    text = (folder / "output.txt").read_text(errors="replace").strip()
    return text.splitlines()[-1][:200] if text else "it said nothing"


def still_there(machine: Machine, known: Collection[int], seconds: float = 30) -> list[str]:
    """The processes that a command has left; `known` are those that were there before it."""
    wait_until(lambda: not started_since(machine, known), seconds)
    return [f"still runs: {command[:100]}" for command in started_since(machine, known).values()]


def started_since(machine: Machine, known: Collection[int]) -> dict[int, str]:
    return {pid: command for pid, command in machine.processes().items() if pid not in known}
