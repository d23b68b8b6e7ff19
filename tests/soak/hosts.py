"""Cuts off one of two hosts in the middle of a run: the link between them goes down, or all its processes are killed.

::

    h0   rank 0, rank 1 ── ends, and names the link ─────────────────► failed, where the other's rows are
    h1   rank 2, rank 3 ── ends too if only the link is down ─────────► failed
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hosts import NAMES, two_hosts, why_not

from microp.records import RUNNING, read_json
from tests.soak.faults import new_folder
from tests.soak.machine import Machine, Result, wait_until

TIMEOUT_S = 5
SLACK_S = 15  # what a busy machine may add
BEGINS_S = 180
WORDS = ["schedule=1f1b", "ranks=4", "chunks=4", "model.layers=4", "model.dim=32", "batch_size=8", "steps=1000000"]
SURVIVORS = {"cut the link": NAMES, "kill h0's processes": NAMES[1:], "kill h1's processes": NAMES[:1]}


def run(machine: Machine, times: int) -> Iterator[Result]:
    """Cut off a host `times` times in each way."""
    chance = random.Random(0)
    for how in SURVIVORS:
        result = Result(how, "a step", "2 hosts", notes=why_not())
        for _ in range(0 if result.notes else times):
            result.add(*make(machine, how, chance.uniform(0, 1)))
        yield result


def make(machine: Machine, how: str, after_s: float) -> tuple[list[str], float]:
    """Cut off a host: what is wrong with what followed, and the seconds until the ranks of the others had ended."""
    folder = new_folder(machine)
    with two_hosts(folder) as hosts:
        words = [*WORDS, f"comms.timeout_s={TIMEOUT_S}", "tracking=disabled"]
        processes = {host.name: host.torchrun(*words) for host in hosts}
        try:
            if not wait_until(lambda: bool(rows(folder / "h0")), BEGINS_S):
                return [f"no row was written: {[host.said()[-300:] for host in hosts]}"], 0.0
            time.sleep(after_s)
            if how == "cut the link":
                hosts[0].cut()
            else:
                processes[how.split()[1].removesuffix("'s")].kill()
            began = time.time()
            limit = TIMEOUT_S + SLACK_S
            problems = []
            for name in SURVIVORS[how]:
                if not wait_until(lambda name=name: "ended" in status(folder / name), limit):
                    problems.append(f"{name} did not end within {limit} s")
                    continue
                message = status(folder / name)["message"]
                if not re.search(r"rank \d on h0.*rank \d on h1|rank \d on h1.*rank \d on h0", message):
                    problems.append(f"{name} names no link: {message}")
                if f"the rows of ranks 2, 3 stay on h1 in {folder}" not in message:
                    problems.append(f"{name} does not say where the rows are: {message}")
            ended = [status(folder / name).get("ended", 0.0) for name in SURVIVORS[how]]
            return problems, max(ended) - began
        finally:
            for process in processes.values():
                process.kill()
                process.wait()


def rows(host: Path) -> int:
    """The bytes of the rows that a host's ranks have written."""
    return sum(path.stat().st_size for path in host.glob("outputs/runs/*/*/steps.*.jsonl"))


def status(host: Path) -> dict[str, str | float]:
    """What a host has recorded of its attempt, once that is no longer running."""
    with suppress(OSError, json.JSONDecodeError):
        for path in host.glob("outputs/runs/*/*/status.json"):
            if (found := read_json(path))["status"] != RUNNING:
                return found
    return {}
