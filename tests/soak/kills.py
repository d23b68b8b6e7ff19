"""One sweep whose processes are killed at random moments, until the same command has finished it.

::

    sweep ──kill──► the same command ──kill──► ... ──kill──► the same command ──► every point is finished
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from microp.store import attempts, read_rows
from tests.soak.long_runs import SMALL, last_line, new_folder, start, started_since, still_there, unfinished
from tests.soak.machine import Machine, Result

KILLS = 10  # times --times
LONGEST_S = 6.0  # the longest time from a start, or from a kill that the command has survived, to the next kill
ENDS_S = 600  # how long the last command may take


def run(machine: Machine, times: int) -> Iterator[Result]:
    """Kill the command itself or one of its ranks, in turn by chance, and start it again if it has ended."""
    kills, folder, chance = KILLS * times, new_folder(machine), random.Random(0)
    before, known = machine.left(alive=False), set(machine.processes())
    points = kills + kills % 2  # more than are finished before the last kill
    words = ["-m", *SMALL, "steps=5", "warmup_steps=1", "chunks=2,4", f"repeat=range({points // 2})"]
    killed, survived = Result("kill the command", "random", "auto"), Result("kill a process of it", "random", "auto")
    program = start(folder, words)
    for _ in range(kills):
        time.sleep(chance.uniform(0, LONGEST_S))
        if program.poll() is not None:
            program = start(folder, words)
            time.sleep(chance.uniform(0, LONGEST_S))
        others = [pid for pid in started_since(machine, known) if pid != program.pid]
        if others and chance.random() < 0.5:
            survived.add(kill_one(chance.choice(others)))
            continue
        program.send_signal(signal.SIGKILL)
        program.wait()
        began = time.monotonic()
        killed.add(still_there(machine, known), time.monotonic() - began)
        program = start(folder, words)
    yield killed
    yield survived
    yield finish(machine, folder, words, program, known, before, points)


def kill_one(pid: int) -> list[str]:
    with suppress(ProcessLookupError):  # it ended in between, which is as good a moment as any
        os.kill(pid, signal.SIGKILL)
    return []


def finish(machine: Machine, folder: Path, words, program, known: Collection[int], before, points: int) -> Result:
    """Let the command end, type it again as long as points have failed, and see what is left."""
    result, problems = Result(f"{points} points after it", "", "auto"), []
    end = time.monotonic() + ENDS_S + points
    while (code := program.wait(max(1.0, end - time.monotonic()))) != 0 and time.monotonic() < end:
        if code != 1:
            problems.append(f"exit code {code}: {last_line(folder)}")
            break
        program = start(folder, words)
    problems += unfinished(folder, points) + unreadable(folder) + still_there(machine, known)
    result.add(problems + machine.left(alive=False).problems(before))
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
