"""What takes hours: every fault many times, long runs, long sweeps, and a sweep that is killed again and again.

::

    pytest -n 0 tests/test_soak.py --times 20               all of it: what `make soak` begins with
    pytest -n 0 tests/test_soak.py --times 2 -k fault       a part of it

    faults    rank 1 of 3, 1F1B, 6 microbatches      F0 F1 │ B0 F2 B1 F3 B2 F4 B3 F5 │ B4 B5   the optimizer
                                                    warm-up│         steady          │cooldown
    steps     one run at K=4 on each transport                 100 steps for each of `--times`
    points    one sweep with processes and one with threads    5 points for each
    kills     one sweep, killed at random moments              10 kills for each
"""

import csv
import gc
import os
import random
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import small_job
from rank_faults import EXITS, SIGNALS, Fault, told
from user import begin

from microp.comms.waiting import is_alive
from microp.records import attempts, read_rows, read_status
from microp.schedule.builders import one_f_one_b
from microp.worker import RankError, launch_ranks

BACKENDS = ("shm", "tcp", "gloo")
HOW = (*SIGNALS, "raise", "memory", *EXITS, "quit", "hang")
MOMENTS = {  # where in a step a fault happens, its microbatch, and the words that messages have for it
    "warm-up": ("forward", 0, "action 1F0"),
    "steady F": ("forward", 3, "action 1F3"),
    "steady B": ("backward", 2, "action 1B2"),
    "cooldown": ("backward", 5, "action 1B5"),
    "optimizer": ("optimizer", 0, "the optimizer"),
    "constructor": ("Trainer", 0, "its set-up"),
}
TIMEOUT_S = 6
STOPPED_S = 30  # that torch's launcher leaves a rank which does not answer SIGTERM
SLACK_S = 10  # that ranks may take to end, and what a busy machine may add
MARK, MINE = "MICROP_SOAK", uuid.uuid4().hex  # in the environment of every process of this test, whatever its parent
MORE = (8.0, 0, 0, 0)  # by which `Usage` of a process may grow, in its order
SMALL = ("model.layers=4", "model.dim=32", "batch_size=8", "tracking=disabled", "warmup_steps=1")
POINT = ("device=emulated", "device.forward_ms=5", "device.backward_ms=10", "steps=40")  # some 3 s on any machine
LONGEST_S = 3.0  # the longest time from a start, or from a new attempt's first row, to the kill
BEGINS_S, ENDS_S = 120, 600  # how long a busy machine may take from a start to a row, and after the last kill


@pytest.fixture(scope="module")
def times(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, MINE)
        patch.setenv("WANDB_MODE", "disabled")
        yield request.config.option.times


class Usage(NamedTuple):
    """What a process holds; segments are mappings of shared memory that has no name."""

    memory_mib: float
    descriptors: int
    threads: int
    segments: int

    def more_than(self, early: "Usage") -> list[str]:
        each = zip(Usage._fields, early, self, MORE, strict=True)
        return [f"{name} grew from {was:.0f} to {now:.0f}" for name, was, now, more in each if now > was + more]


def usage(pid: int) -> Usage | None:
    """What a process holds; None if it has ended."""
    with suppress(OSError, KeyError):
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        segments = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
        return Usage(int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]), segments)
    return None


def processes(known: Collection[int] = ()) -> dict[int, str]:
    """This test's processes that run, less this one and those that are `known` -> their command lines."""
    commands = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            is_mine = f"{MARK}={MINE}".encode() in (folder / "environ").read_bytes()
            if is_mine and (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return {pid: command for pid, command in commands.items() if pid not in {os.getpid(), *known}}


def still_there(known: Collection[int]) -> list[str]:
    wait_until(lambda: not processes(known), 30)
    return [f"still runs: {command[:100]}" for command in processes(known).values()]


def wait_until(is_so: Callable[[], object], seconds: float) -> bool:
    """Wait at most so long until it is so, and say whether it is. All may be stopped, as by Ctrl-Z: polls count."""
    for _ in range(round(seconds / 0.05)):
        if is_so():
            return True
        time.sleep(0.05)
    return bool(is_so())


@pytest.mark.parametrize(("backend", "how", "moment"), [*product(BACKENDS, HOW, MOMENTS)])
def test_a_fault_is_named_and_ends_in_time(backend, how, moment, times, tmp_path):
    """And costs no row; a launch without a fault comes first, and follows."""
    where, microbatch, place = MOMENTS[moment]
    fault, step, numbers = Fault(how, where, microbatch, 1), 0 if where == "Trainer" else 2, count()
    limit = SLACK_S + TIMEOUT_S * (how in ("hang", "stop")) + STOPPED_S * (how == "stop")

    def launch(steps: int, *entry: Fault) -> tuple[Path, str]:
        given = {"batch_size": 6, "backend": backend, "timeout_s": TIMEOUT_S, "steps": steps}
        attempt = tmp_path / str(next(numbers))
        attempt.mkdir()
        try:
            launch_ranks(small_job(schedule=one_f_one_b(3, 6), **given), attempt, *entry)
        except RankError as error:
            return attempt, str(error)
        return attempt, ""

    def problems() -> list[str]:
        before = usage(os.getpid())
        attempt, message = launch(50, fault)
        pids = [int(file.read_text()) for file in attempt.glob("pid*")]
        found = [] if wait_until(lambda: not any(map(is_alive, pids)), 5) else ["ranks were still there"]
        if time.time() - float((attempt / "happened").read_text()) > limit:
            found.append(f"the ranks took longer than {limit} s")
        if not re.fullmatch(told(fault, 1, place, step), message):
            found.append(f"named wrongly: {message}")
        rows = [[row["step"] for row in read_rows(attempt, rank)] for rank in range(3)]
        found += ["rows are lost"] * (rows != [list(range(step))] * 3)
        wait_until(lambda: not grown(before), 3)
        return found + grown(before)

    def grown(before: Usage) -> list[str]:
        gc.collect()
        return [f"the launcher's {text}" for text in usage(os.getpid()).more_than(before)]

    assert launch(1)[1] == ""  # the launcher's own first use of torch, sockets and the forkserver
    assert Counter(problem for _ in range(times) for problem in problems()) == {}
    assert launch(1)[1] == ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_steps_take_no_more_than_few(backend, times, tmp_path):
    steps = 100 * max(times, 5)  # fewer end before anything can be compared
    words = [*SMALL, "ranks=4", "schedule=1f1b", "chunks=4", f"steps={steps}", f"comms={backend}"]

    def rows() -> int:
        return sum(len(read_rows(attempt, 0)) for attempt in tmp_path.glob("outputs/runs/*/attempt-1"))

    assert watched(tmp_path, words, rows, steps, steps // 10) == []


@pytest.mark.parametrize("comms", ["auto", "threads"])
def test_many_points_take_no_more_than_few(comms, times, tmp_path):
    """Early is after a tenth of the points, and after five: by then torch has loaded what it needs."""
    points = 5 * max(times, 4) // 2 * 2
    words = ["-m", *SMALL, "steps=2", "chunks=2,4", f"repeat=range({points // 2})", f"comms={comms}"]
    done = lambda: attempts_with(tmp_path, "summary.json")  # noqa: E731
    assert watched(tmp_path, words, done, points, max(points // 10, 5)) == []
    assert unfinished(tmp_path, points) == []


def watched(folder: Path, words: Sequence[str], done: Callable[[], int], whole: int, early_at: int) -> list[str]:
    """Run a command; compare the most that each of its processes held early on with the least that it held late.

    Early is from `early_at` of the `whole` that is `done` on to twice that, late the last tenth: between two points,
    and while ranks start, a command holds more for a moment.
    """
    known, program = set(processes()), begin(*words, folder=folder)
    early: dict[int, list[Usage]] = {}
    late: dict[int, list[Usage]] = {}
    while program.poll() is None:
        time.sleep(0.1)
        looks = early if early_at <= done() < 2 * early_at else late if 0.9 * whole <= done() < whole else {}
        for pid in processes(known):
            if held := usage(pid):
                looks.setdefault(pid, []).append(held)
    problems = [f"exit code {program.returncode}: {program.said()[-200:]}"] if program.returncode else []
    both = early.keys() & late.keys()
    for pid in both:
        least, most = (Usage(*map(of, zip(*looks[pid], strict=True))) for of, looks in ((min, late), (max, early)))
        problems += least.more_than(most)
    return problems + still_there(known) + ([] if both else ["it ended before anything could be compared"])


def test_a_sweep_that_is_killed_again_and_again_is_finished_by_the_same_command(times, tmp_path):
    """The command itself, at its start or in a run, or one of its processes, in turn by chance."""
    kills, chance, known = 10 * times, random.Random(0), set(processes())
    points = 2 * (kills // 8 + 2)  # more than are finished before the last kill
    words = ["-m", *SMALL, *POINT, "chunks=2,4", f"repeat=range({points // 2})"]
    problems: Counter[str] = Counter()
    program = begin(*words, folder=tmp_path)
    for _ in range(kills):
        kind = chance.choice(("command at its start", "command in a run", "process of it"))
        if kind != "command at its start":  # wait for the first row of another attempt
            before = attempts_with(tmp_path, "steps.rank0.jsonl")
            begun = lambda was=before: attempts_with(tmp_path, "steps.rank0.jsonl") > was  # noqa: E731
            wait_until(lambda at=program, begun=begun: at.poll() is not None or begun(), BEGINS_S)
        time.sleep(chance.uniform(0, LONGEST_S))
        if program.poll() == 0:
            break
        others = [pid for pid in processes(known) if pid != program.pid]
        if program.poll() is None and kind == "process of it" and others:
            with suppress(ProcessLookupError):  # it ended in between, which is as good a moment as any
                os.kill(chance.choice(others), signal.SIGKILL)
        else:
            program.kill()
            program.wait()
            problems.update(still_there(known))
        if program.poll() is not None:
            program = begin(*words, folder=tmp_path)
    for command in range(3):  # as many are typed after the last kill
        program = begin(*words, folder=tmp_path) if command else program
        if not wait_until(lambda at=program: at.poll() is not None, ENDS_S + points):
            program.kill()
        if (code := program.wait()) != 1:
            break
    problems.update([f"exit code {code}: {program.said()[-200:]}"] if code else [])
    problems.update([*unfinished(tmp_path, points), *unreadable(tmp_path), *still_there(known)])
    assert problems == {}


def unreadable(folder: Path) -> list[str]:
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
    tables = sorted(folder.glob("outputs/sweeps/*/table.csv"), key=lambda path: path.stat().st_mtime)
    statuses = [row["status"] for row in csv.DictReader(tables[-1].open())] if tables else []
    done = statuses.count("finished")
    return [] if done == points == len(statuses) else [f"{done} of {len(statuses)} points finished, {points} planned"]


def attempts_with(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"outputs/runs/*/attempt-*/{name}")))
