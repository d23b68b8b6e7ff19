"""Commands as users type them: long runs, long sweeps, and a sweep whose processes are killed.

::

    steps, points   what a process holds at the end is what it held after a tenth
    kills           sweep ──kill──► the same command ──kill──► ... ──► the same command ──► every point is finished
"""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from user import ROOT

from microp.records import attempts, read_rows, read_status
from tests.soak.faults import BACKENDS
from tests.soak.machine import Machine, Result, Usage, usage, wait_until

STEPS = 100  # times --times
POINTS = 5  # times --times
KILLS = 10  # times --times
SMALL = ("model.layers=4", "model.dim=32", "batch_size=8", "tracking=disabled", "warmup_steps=1")
LOOK_S, ROWS = 0.1, "steps.rank0.jsonl"
SETTLED = 5  # points after which torch has loaded what it needs
LONGEST_S = 3.0  # the longest time from a start, or from a new attempt's first row, to the kill
POINT = ["device=emulated", "device.forward_ms=5", "device.backward_ms=10", "steps=40"]  # some 3 s on any machine
BEGINS_S = 120  # how long a busy machine may take from the start to a row
ENDS_S = 600  # how long a command may take after the last kill, and a second more per point
COMMANDS = 3  # as many are typed after the last kill


def run_steps(machine: Machine, times: int) -> Iterator[Result]:
    """One run at K=4 on each transport; early is after a tenth of its steps."""
    steps = STEPS * max(times, 5)  # fewer end before anything can be compared
    for backend in BACKENDS:
        folder, result = machine.new_folder(), Result(f"{steps} steps, K=4, {backend}")
        words = [*SMALL, "ranks=4", "schedule=1f1b", "chunks=4", f"steps={steps}", f"comms={backend}"]
        result.add(*watch(machine, folder, words, lambda at=folder: rows_of(at), steps, steps // 10))
        yield result


def run_points(machine: Machine, times: int) -> Iterator[Result]:
    """One sweep with processes and one with threads; early is after a tenth of its points, at least after SETTLED."""
    points = POINTS * max(times, 4) // 2 * 2  # likewise
    for comms in ("auto", "threads"):
        folder, result = machine.new_folder(), Result(f"{points} points, {comms}")
        words = ["-m", *SMALL, "steps=2", "chunks=2,4", f"repeat=range({points // 2})", f"comms={comms}"]
        early = max(points // 10, SETTLED)
        problems, took = watch(
            machine, folder, words, lambda at=folder: attempts_with(at, "summary.json"), points, early
        )
        result.add([*problems, *unfinished(folder, points)], took)
        yield result


def watch(
    machine: Machine, folder: Path, words: Sequence[str], done: Callable[[], int], whole: int, early_at: int
) -> tuple[list[str], float]:
    """Run a command; compare the most that each of its processes held early on with the least that it held late.

    Early is from `early_at` of the `whole` that is `done` on to twice that, late the last tenth: between two points,
    and while ranks start, a command holds more for a moment.
    """
    known, began = set(machine.processes()), time.monotonic()
    program = start(folder, words)
    early: dict[int, list[Usage]] = {}
    late: dict[int, list[Usage]] = {}
    while program.poll() is None:
        time.sleep(LOOK_S)
        looks = early if early_at <= done() < 2 * early_at else late if 0.9 * whole <= done() < whole else {}
        for pid in machine.processes(known):
            if held := usage(pid):
                looks.setdefault(pid, []).append(held)
    took = time.monotonic() - began
    problems = [f"exit code {program.returncode}: {last_line(folder)}"] if program.returncode else []
    both = early.keys() & late.keys()
    if not both:
        problems.append("it ended before anything could be compared")
    for pid in both:
        least, most = (
            Usage(*map(choose, zip(*looks[pid], strict=True))) for choose, looks in ((min, late), (max, early))
        )
        problems += least.more_than(most)
    return problems + machine.still_there(known), took


def run_kills(machine: Machine, times: int) -> Iterator[Result]:
    """Kill the command itself or one of its processes, in turn by chance, and start it again if it has ended."""
    kills, folder, chance = KILLS * times, machine.new_folder(), random.Random(0)
    known = set(machine.processes())
    points = 2 * (kills // 8 + 2)  # more than are finished before the last kill
    words = ["-m", *SMALL, *POINT, "chunks=2,4", f"repeat=range({points // 2})"]
    at_start, in_run = Result("kill the command at its start"), Result("kill the command in a run")
    of_it = Result("kill a process of it")
    program = start(folder, words)
    for _ in range(kills):
        result = chance.choice((at_start, in_run, of_it))
        if result is not at_start:  # wait for the first row of another attempt
            before = attempts_with(folder, ROWS)
            wait_until(
                lambda at=program, was=before: at.poll() is not None or attempts_with(folder, ROWS) > was, BEGINS_S
            )
        time.sleep(chance.uniform(0, LONGEST_S))
        if program.poll() == 0:
            break
        others = [pid for pid in machine.processes(known) if pid != program.pid]
        if program.poll() is None and result is of_it and others:
            with suppress(ProcessLookupError):  # it ended in between, which is as good a moment as any
                os.kill(chance.choice(others), signal.SIGKILL)
            result.add([])
        else:
            program.kill()
            program.wait()
            began = time.monotonic()
            left = machine.still_there(known)
            (in_run if result is of_it else result).add(left, time.monotonic() - began)
        if program.poll() is not None:
            program = start(folder, words)
    yield from (at_start, in_run, of_it)
    end = Result(f"the same command finishes {points} points")
    for command in range(COMMANDS):
        if command:
            program = start(folder, words)
        if not wait_until(lambda at=program: at.poll() is not None, ENDS_S + points):
            program.kill()
        if (code := program.wait()) != 1:
            break
    problems = [f"exit code {code}: {last_line(folder)}"] if code else []
    end.add([*problems, *unfinished(folder, points), *unreadable(folder), *machine.still_there(known)])
    yield end


def unreadable(folder: Path) -> list[str]:
    """The attempts whose rows cannot be read, or whose status is none."""
    problems = []
    for attempt in (attempt for run in folder.glob("outputs/runs/*") for attempt in attempts(run)):
        try:
            for rank in range(2):
                read_rows(attempt, rank)
            if (attempt / "status.json").exists():
                read_status(attempt)
        except ValueError as error:
            problems.append(f"cannot be read: {error}"[:100])
    return problems


def unfinished(folder: Path, points: int) -> list[str]:
    """What the last sweep's table lacks."""
    tables = sorted(folder.glob("outputs/sweeps/*/table.csv"), key=lambda path: path.stat().st_mtime)
    if not tables:
        return ["the sweep left no table"]
    with tables[-1].open() as file:
        statuses = [row["status"] for row in csv.DictReader(file)]
    done = statuses.count("finished")
    return [] if done == points == len(statuses) else [f"{done} of {len(statuses)} points finished, {points} planned"]


def rows_of(folder: Path) -> int:
    """The number of rows that rank 0 of the only run has written so far."""
    return sum(len(read_rows(attempt, 0)) for attempt in folder.glob("outputs/runs/*/attempt-1"))


def attempts_with(folder: Path, name: str) -> int:
    """The number of attempts that have a file: `summary.json`, when they have ended, or their first rows."""
    return len(list(folder.glob(f"outputs/runs/*/attempt-*/{name}")))


def start(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start microp as a user does; what it prints goes into `output.txt`."""
    command = [sys.executable, "-m", "microp.run", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)


def last_line(folder: Path) -> str:
    text = (folder / "output.txt").read_text(errors="replace").strip()
    return text.splitlines()[-1][:200] if text else "it said nothing"
