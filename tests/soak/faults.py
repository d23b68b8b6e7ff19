"""Every fault at every moment of a step where it makes sense, on each transport.

::

    rank 1 of 3, 1F1B, 6 microbatches      F0 F1 │ B0 F2 B1 F3 B2 F4 B3 F5 │ B4 B5   the optimizer
                                          warm-up│         steady          │cooldown
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conftest import small_job
from rank_faults import EXITS, SIGNALS, Fault

from microp.records import read_rows
from microp.schedule.builders import one_f_one_b
from microp.worker import RankError, launch_ranks
from tests.soak.machine import Machine, Result

RANKS, CHUNKS, VICTIM = 3, 6, 1
SHUTDOWN_S, TIMEOUT_S = 2, 6
SLACK_S = 8  # what a busy machine may add to the stated time
GONE_S = {"hang": TIMEOUT_S + SHUTDOWN_S}  # else SHUTDOWN_S after it was seen, and the watch sees within seconds


class Moment(NamedTuple):
    """Where in a step a fault happens, and the words that messages have for it."""

    name: str
    where: str
    microbatch: int
    place: str

    @property
    def step(self) -> int:
        return 0 if self.where == "Trainer" else 2


WARMUP = Moment("warm-up", "forward", 0, "1F0")
STEADY_F = Moment("steady F", "forward", 3, "1F3")
STEADY_B = Moment("steady B", "backward", 2, "1B2")
COOLDOWN = Moment("cooldown", "backward", 5, "1B5")
OPTIMIZER = Moment("optimizer", "optimizer", 0, "the optimizer")
CONSTRUCTOR = Moment("constructor", "Trainer", 0, "its set-up")
MOMENTS = (WARMUP, STEADY_F, STEADY_B, COOLDOWN, OPTIMIZER, CONSTRUCTOR)
BACKENDS = ("shm", "tcp", "gloo")
HOW = ("kill", "end", "interrupt", "stop", "raise", "memory", "exit", "leave", "quit", "hang")


def run(machine: Machine, times: int) -> Iterator[Result]:
    """Make every fault `times` times; a launch without a fault follows each of the kinds."""
    for backend in BACKENDS:
        health(machine, backend)  # the launcher's own first use of torch, sockets and the forkserver
    for backend in BACKENDS:
        for how in HOW:
            for moment in MOMENTS:
                result = Result(how, moment.name, backend)
                for _ in range(times):
                    problems, seconds = make(machine, how, moment, backend)
                    result.add(problems, seconds)
                if problem := health(machine, backend):
                    result.add([f"the next point does not run: {problem}"])
                yield result


def health(machine: Machine, backend: str) -> str:
    """Why a launch without a fault fails; empty if it does not."""
    attempt = new_folder(machine)
    try:
        launch_ranks(job(backend, steps=1), attempt, SHUTDOWN_S)
    except RankError as error:
        return str(error)
    return ""


def new_folder(machine: Machine) -> Path:
    folder = machine.folder / "attempts" / str(time.monotonic_ns())
    folder.mkdir(parents=True)
    return folder


def job(backend: str, steps: int = 50):
    return small_job(
        schedule=one_f_one_b(RANKS, CHUNKS), batch_size=CHUNKS, backend=backend, timeout_s=TIMEOUT_S, steps=steps
    )


def make(machine: Machine, how: str, moment: Moment, backend: str) -> tuple[list[str], float]:
    """Make one fault: what is wrong with what followed, and the seconds from the fault to the end of every rank."""
    attempt, message, before = new_folder(machine), "", machine.left()
    try:
        launch_ranks(job(backend), attempt, SHUTDOWN_S, Fault(how, moment.where, moment.microbatch, VICTIM))
    except RankError as error:
        message = str(error)
    if not (attempt / "happened").exists():
        return [f"the fault was not reached: {message}"], 0.0
    pids = [int(file.read_text()) for file in attempt.glob("pid*")]
    alive, _ = machine.wait_until_gone(pids, 5)
    seconds = time.time() - float((attempt / "happened").read_text())
    problems = [f"{len(alive)} ranks were still there"] if alive else []
    if seconds > (limit := GONE_S.get(how, SHUTDOWN_S) + SLACK_S):
        problems.append(f"the ranks took longer than {limit} s")
    if not is_named(message, how, moment):
        problems.append(f"named wrongly: {message}")
    if lost := [rank for rank in range(RANKS) if steps_of(attempt, rank) != list(range(moment.step))]:
        problems.append(f"rows of rank {', '.join(map(str, lost))} are lost")
    return problems + machine.left_since(before), seconds


def is_named(message: str, how: str, moment: Moment) -> bool:
    """Whether the message blames the rank, and says what it was doing and in which step."""
    place, step = moment.place, moment.step
    if how == "hang":
        blames = f"rank {VICTIM}, which has been in {place} for " in message
        return blames and message.endswith(f"(step {step})") and not message.startswith(f"rank {VICTIM}")
    action = "action " if moment.where in ("forward", "backward") else ""
    said = {
        **{
            how: f"rank {VICTIM} was killed by {number.name} in {place}, step {step}" for how, number in SIGNALS.items()
        },
        **{how: f"rank {VICTIM} ended with exit code {code} in {place}, step {step}" for how, code in EXITS.items()},
        "stop": f"rank {VICTIM} was stopped by a signal in {place}, step {step}",
        "raise": f"rank {VICTIM}, {action}{place}, step {step}: the layer is broken",
        "memory": f"rank {VICTIM}, {action}{place}, step {step}: out of memory",
        "quit": f"rank {VICTIM}, {action}{place}, step {step}: SystemExit: 0",
    }
    return message == said[how]


def steps_of(attempt: Path, rank: int) -> list[int]:
    return [row["step"] for row in read_rows(attempt, rank)]
