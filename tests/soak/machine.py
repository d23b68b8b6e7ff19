"""What a test may leave behind on this machine, and one line of the table of results.

Every process of the soak test inherits a mark in its environment, so that it is found whatever its parent is by
then, and a folder for temporary files that no other program uses.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from microp.comms.waiting import is_alive

MARK = "MICROP_SOAK"
ENDS_S = 3.0
POLL_S = 0.05
MORE_MIB = 8.0  # what the memory of a process may grow between the early and the last look


@dataclass
class Result:
    """One line of the table.

    Attributes:
        fault, moment, transport: what was done.
        tried, passed: how often.
        slowest_s: the longest time until every process had ended.
        reasons: why it failed, and how often.
    """

    fault: str
    moment: str
    transport: str
    tried: int = 0
    passed: int = 0
    slowest_s: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    notes: str = ""

    def add(self, problems: Iterable[str], seconds: float = 0.0) -> None:
        """Add one try; it passed if there are no problems."""
        found = list(problems)
        self.tried += 1
        self.passed += not found
        self.slowest_s = max(self.slowest_s, seconds)
        for problem in found:
            self.reasons[problem] = self.reasons.get(problem, 0) + 1

    def line(self) -> str:
        passed, slowest = f"{self.passed} of {self.tried}", f"{self.slowest_s:.1f} s"
        lines = [
            f"{self.fault:<30}{self.moment:<14}{self.transport:<11}{passed:>12}{slowest:>13}  {self.notes}".rstrip()
        ]
        return "\n".join([*lines, *(f"    {times} x {reason}" for reason, times in self.reasons.items())])


class Left(NamedTuple):
    """What this process holds at one moment."""

    descriptors: int
    threads: int

    def problems(self, before: Left) -> list[str]:
        """What it holds now and did not hold before."""
        counts = zip(self._fields, before, self, strict=True)
        return [f"{now - was} more {name} in the launcher" for name, was, now in counts if now > was]


class Machine(NamedTuple):
    """The mark of this soak test's processes, and its folder."""

    mark: str
    folder: Path

    @classmethod
    def start(cls, folder: Path) -> Machine:
        """Mark this process and those that it starts from now on."""
        temporary = folder / "tmp"
        temporary.mkdir()
        mark = uuid.uuid4().hex
        os.environ |= {MARK: mark, "TMPDIR": str(temporary), "WANDB_MODE": "disabled"}
        tempfile.tempdir = str(temporary)
        return cls(mark, folder)

    def left(self) -> Left:
        return Left(len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir())))

    def left_since(self, before: Left) -> list[str]:
        """What is held that was not held before, after the time that threads and finalizers take to end."""
        problems: list[str] = []

        def is_clean() -> bool:
            gc.collect()
            problems[:] = self.left().problems(before)
            return not problems

        wait_until(is_clean, ENDS_S)
        return problems

    def processes(self) -> dict[int, str]:
        """The marked processes that run, less this one -> their command lines."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                if f"{MARK}={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                if (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # it has ended, or is another user's
                continue
            found[int(folder.name)] = command
        return found

    def wait_until_gone(self, pids: Iterable[int], seconds: float) -> tuple[list[int], float]:
        """Wait until these processes have ended: those that still run, and how long it took."""
        began, left = time.monotonic(), list(pids)
        while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() - began < seconds:
            time.sleep(0.02)
        return left, time.monotonic() - began


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait at most so long until it is so, and say whether it is.

    The polls are counted, because this process and all others may be stopped for minutes, as by the terminal's Ctrl-Z.
    """
    for _ in range(round(seconds / POLL_S)):
        if is_so():
            return True
        time.sleep(POLL_S)
    return is_so()


class Usage(NamedTuple):
    """What one process holds; segments are mappings of shared memory that has no name."""

    memory_mib: float
    descriptors: int
    threads: int
    segments: int = 0

    def more_than(self, early: Usage) -> list[str]:
        """What has grown since an earlier look."""
        found = []
        if self.memory_mib > early.memory_mib + MORE_MIB:
            found.append(f"memory grew from {early.memory_mib:.0f} to {self.memory_mib:.0f} MiB")
        each = zip(Usage._fields[1:], early[1:], self[1:], strict=True)
        return found + [f"{name} grew from {was} to {now}" for name, was, now in each if now > was]


def usage(pid: int) -> Usage | None:
    """What a process holds; None if it has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        segments = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
        return Usage(int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]), segments)
    except (OSError, KeyError):
        return None


def command_of(pid: int) -> str:
    """What a helper of a command is: the module of multiprocessing that it runs, or its program."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return next((each for each in ("forkserver", "resource_tracker") if each in words[-2]), words[0])


def grown(looks: Sequence[Mapping[str, Any]], early: int) -> list[str]:
    """What a command held more at its last look than at look number `early`; see `look`."""
    first, last = looks[early], looks[-1]
    problems = []
    for name, held in last.items():
        if name not in first:
            problems.append(f"{name} is new")
        else:
            problems += [f"{name}: {text}" for text in Usage(**held).more_than(Usage(**first[name]))]
    return problems
