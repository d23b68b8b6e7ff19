"""Every fault at every moment of a step where it makes sense, on each transport.

::

    rank 1 of 3, 1F1B, 6 microbatches      F0 F1 │ B0 F2 B1 F3 B2 F4 B3 F5 │ B4 B5   the optimizer
                                          warm-up│         steady          │cooldown
"""

import gc
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from conftest import small_job
from rank_faults import EXITS, SIGNALS, Fault, told

from microp.comms.waiting import is_alive
from microp.records import read_rows
from microp.schedule.builders import one_f_one_b
from microp.worker import RankError, launch_ranks
from tests.soak.machine import Machine, Result, usage, wait_until

RANKS, CHUNKS, VICTIM = 3, 6, 1
TIMEOUT_S = 6
STOPPED_S = 30  # that torch's launcher leaves a rank which does not answer SIGTERM
SLACK_S = 8  # what a busy machine may add to the stated time
ENDS_S = 3.0  # the time that threads and finalizers of the launcher take to end


class Moment(NamedTuple):
    """Where in a step a fault happens, and the words that messages have for it."""

    name: str
    where: str
    microbatch: int
    place: str

    @property
    def step(self) -> int:
        return 0 if self.where == "Trainer" else 2


MOMENTS = (
    Moment("warm-up", "forward", 0, "action 1F0"),
    Moment("steady F", "forward", 3, "action 1F3"),
    Moment("steady B", "backward", 2, "action 1B2"),
    Moment("cooldown", "backward", 5, "action 1B5"),
    Moment("optimizer", "optimizer", 0, "the optimizer"),
    Moment("constructor", "Trainer", 0, "its set-up"),
)
BACKENDS = ("shm", "tcp", "gloo")
HOW = (*SIGNALS, "raise", "memory", *EXITS, "quit", "hang")


def run(machine: Machine, times: int) -> Iterator[Result]:
    """Make every fault `times` times; a launch without a fault comes first, and follows each of the kinds."""
    for backend in BACKENDS:
        health(machine, backend)  # the launcher's own first use of torch, sockets and the forkserver
        for how in HOW:
            for moment in MOMENTS:
                result = Result(f"{how}, {moment.name}, {backend}")
                for _ in range(times):
                    result.add(*make(machine, how, moment, backend))
                result.reasons.update(health(machine, backend))
                yield result


def health(machine: Machine, backend: str) -> list[str]:
    """Why a launch without a fault fails; empty if it does not."""
    try:
        launch_ranks(job(backend, steps=1), machine.new_folder())
    except RankError as error:
        return [f"the next point does not run: {error}"]
    return []


def job(backend: str, steps: int = 50):
    given = {"batch_size": CHUNKS, "backend": backend, "timeout_s": TIMEOUT_S, "steps": steps}
    return small_job(schedule=one_f_one_b(RANKS, CHUNKS), **given)


def make(machine: Machine, how: str, moment: Moment, backend: str) -> tuple[list[str], float]:
    """Make one fault: what is wrong with what followed, and the seconds from the fault to the end of every rank."""
    attempt, message, before = machine.new_folder(), "", usage(os.getpid())
    fault = Fault(how, moment.where, moment.microbatch, VICTIM)
    try:
        launch_ranks(job(backend), attempt, fault)
    except RankError as error:
        message = str(error)
    if not (attempt / "happened").exists():
        return [f"the fault was not reached: {message}"], 0.0
    problems = []
    pids = [int(file.read_text()) for file in attempt.glob("pid*")]
    if not wait_until(lambda: not any(map(is_alive, pids)), 5):
        problems.append("ranks were still there")
    seconds = time.time() - float((attempt / "happened").read_text())
    if seconds > (limit := 2 + SLACK_S + TIMEOUT_S * (how in ("hang", "stop")) + STOPPED_S * (how == "stop")):
        problems.append(f"the ranks took longer than {limit} s")
    if not re.fullmatch(told(fault, VICTIM, moment.place, moment.step), message):
        problems.append(f"named wrongly: {message}")
    for rank in range(RANKS):
        if [row["step"] for row in read_rows(attempt, rank)] != list(range(moment.step)):
            problems.append(f"rows of rank {rank} are lost")

    def grown() -> list[str]:
        gc.collect()
        return [f"the launcher's {text}" for text in usage(os.getpid()).more_than(before)]

    wait_until(lambda: not grown(), ENDS_S)
    return problems + grown(), seconds
