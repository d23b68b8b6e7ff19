"""One sweep whose processes are killed at random moments, until the same command has finished it.

::

    sweep ──kill──► the same command ──kill──► ... ──kill──► the same command ──► every point is finished
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from microp.records import attempts, read_rows
from tests.soak.long_runs import SMALL, last_line, new_folder, start, started_since, still_there, unfinished
from tests.soak.machine import Machine, Result, wait_until

ROWS = "outputs/runs/*/attempt-*/steps.rank0.jsonl"
KILLS = 10  # times --times
LONGEST_S = 3.0  # the longest time from a start, or from a new attempt's first row, to the kill
POINT = ["device=emulated", "device.forward_ms=5", "device.backward_ms=10", "steps=40"]  # some 3 s on any machine
BEGINS_S = 120  # how long a busy machine may take from the start to a row
ENDS_S = 600  # how long a command may take after the last kill, and a second more per point
COMMANDS = 3  # as many are typed after the last kill


def run(machine: Machine, times: int) -> Iterator[Result]:
    """Kill the command itself or one of its processes, in turn by chance, and start it again if it has ended."""
    kills, folder, chance = KILLS * times, new_folder(machine), random.Random(0)
    known = set(machine.processes())
    points = 2 * (kills // 8 + 2)  # more than are finished before the last kill
    words = ["-m", *SMALL, *POINT, "warmup_steps=1", "chunks=2,4", f"repeat=range({points // 2})"]
    at_start = Result("kill the command", "its start", "auto")
    in_run = Result("kill the command", "a run", "auto")
    of_it = Result("kill a process of it", "a run", "auto")
    program = start(folder, words)
    for _ in range(kills):
        result = chance.choice((at_start, in_run, of_it))
        if result is not at_start:
            wait_for_rows(folder, program)
        time.sleep(chance.uniform(0, LONGEST_S))
        if program.poll() == 0:
            break
        others = [pid for pid in started_since(machine, known) if pid != program.pid]
        if program.poll() is None and result is of_it and others:
            kill_one(chance.choice(others))
            result.add([])
        else:
            program.kill()
            program.wait()
            began = time.monotonic()
            left = still_there(machine, known)
            (in_run if result is of_it else result).add(left, time.monotonic() - began)
        if program.poll() is not None:
            program = start(folder, words)
    yield from (at_start, in_run, of_it)
    end = finish(machine, folder, words, program, known, points)
    if (made := at_start.tried + in_run.tried + of_it.tried) < kills:
        end.reasons[f"all points were finished after {made} kills"] = 1
        end.passed = 0
    yield end


def wait_for_rows(folder: Path, program: subprocess.Popen[bytes]) -> None:
    """Wait until the command has written the first row of another attempt, or has ended."""
    known = len(list(folder.glob(ROWS)))
    wait_until(lambda: program.poll() is not None or len(list(folder.glob(ROWS))) > known, BEGINS_S)


def kill_one(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended in between, which is as good a moment as any
        os.kill(pid, signal.SIGKILL)


def finish(machine: Machine, folder: Path, words, program, known: Collection[int], points: int) -> Result:
    """Let the command end, type it again as long as points have failed, and see what is left."""
    result, problems = Result(f"{points} points after it", "", "auto"), []
    code = 1
    for command in range(COMMANDS):
        if command:
            program = start(folder, words)
        if not wait_until(lambda at=program: at.poll() is not None, ENDS_S + points):
            program.kill()
        if (code := program.wait()) != 1:
            break
    if code:
        problems.append(f"exit code {code}: {last_line(folder)}")
    problems += unfinished(folder, points) + unreadable(folder) + still_there(machine, known)
    result.add(problems)
    result.notes = f"{len(list(folder.glob('outputs/runs/*/attempt-*')))} attempts"
    return result


def unreadable(folder: Path) -> list[str]:
    """The attempts whose rows cannot be read, or whose status is none."""
    found = []
    for run_folder in folder.glob("outputs/runs/*"):
        for attempt in attempts(run_folder):
            try:
                for path in attempt.glob("steps.rank*.jsonl"):
                    read_rows(attempt, int(path.name.removeprefix("steps.rank").removesuffix(".jsonl")))
                if (attempt / "status.json").exists():
                    json.loads((attempt / "status.json").read_text())
            except ValueError as error:
                found.append(f"cannot be read: {error}"[:100])
    return found
