"""What a test may leave behind on this machine, and one line of the table of results.

Every process of the soak test inherits a mark in its environment, so that it is found whatever its parent is by
then, and a folder for temporary files that no other program uses.
"""

from __future__ import annotations

import gc
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from microp.comms.processes import is_alive

MARK = "MICROP_SOAK"
OF_A_LIVE_PROCESS = ("pymp-",)  # a folder of multiprocessing, which it removes when the process ends
ENDS_S = 3.0
POLL_S = 0.05
MORE_MIB = 8.0  # what the memory of a process may grow between the early and the last look
OF_A_USER = "torchinductor_"  # torch's cache, one folder per user
MAKER = re.compile(r"(?:sem\.microp-[0-9]+-|torch_)([0-9]+)[-_]")  # the process that made a name


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
    """What exists at one moment.

    Attributes:
        shared: the names in /dev/shm.
        temporary: the names in the folder for temporary files, less those of a live process.
        descriptors, threads: of this process.
    """

    shared: frozenset[str]
    temporary: frozenset[str]
    descriptors: int
    threads: int

    def problems(self, before: Left) -> list[str]:
        """What is there now and was not there before."""
        new = {"in /dev/shm": self.shared - before.shared, "as temporary file": self.temporary - before.temporary}
        found = [f"left {where}: {kind}" for where, names in new.items() for kind in sorted(set(map(_kind, names)))]
        if self.descriptors > before.descriptors:
            found.append(f"{self.descriptors - before.descriptors} more descriptors in the launcher")
        if self.threads > before.threads:
            found.append(f"{self.threads - before.threads} more threads in the launcher")
        return found


def _kind(name: str) -> str:
    """The part of a temporary file's name that is no random text."""
    return f"{name.rpartition('-')[0] or name.rpartition('_')[0]}-*" if "-" in name or "_" in name else name


class Machine(NamedTuple):
    """The mark of this soak test's processes, its folders, and the processes of it that were ever seen."""

    mark: str
    folder: Path
    temporary: Path
    seen: set[int]

    @classmethod
    def start(cls, folder: Path) -> Machine:
        """Mark this process and those that it starts from now on."""
        temporary = folder / "tmp"
        temporary.mkdir()
        mark = uuid.uuid4().hex
        os.environ |= {MARK: mark, "TMPDIR": str(temporary), "WANDB_MODE": "disabled"}
        tempfile.tempdir = str(temporary)
        return cls(mark, folder, temporary, {os.getpid()})

    def left(self, alive: bool = True) -> Left:
        """What exists now; with `alive` less what a process that goes on may keep."""
        kept = (OF_A_USER, *(OF_A_LIVE_PROCESS if alive else ()))
        temporary = {path.name for path in self.temporary.iterdir() if not path.name.startswith(kept)}
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        threads = len(list(Path("/proc/self/task").iterdir()))
        return Left(self._shared(), frozenset(temporary), descriptors, threads)

    def left_since(self, before: Left, alive: bool = True) -> list[str]:
        """What is left that was not there before, after the time that threads and finalizers take to end."""
        problems: list[str] = []

        def is_clean() -> bool:
            gc.collect()
            problems[:] = self.left(alive).problems(before)
            return not problems

        wait_until(is_clean, ENDS_S)
        return problems

    def _shared(self) -> frozenset[str]:
        """The names in /dev/shm that are of this soak test.

        Some tell the process that made them. The others count if no process without the mark maps their memory; a map
        tells only the inode.
        """
        names, others = {}, set()
        ours = {os.getpid(), *self.processes()}
        for path in Path("/dev/shm").iterdir():
            maker = MAKER.match(path.name)
            if maker is None or int(maker[1]) in self.seen:
                with suppress(FileNotFoundError):
                    names[path.name] = path.stat().st_ino
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) not in ours:
                with suppress(OSError):
                    maps = (folder / "maps").read_text().splitlines()
                    others |= {int(line.split()[4]) for line in maps if "/dev/shm/" in line}
        found = {name for name, inode in names.items() if inode not in others}
        return frozenset(name for name in found if Path("/dev/shm", name).exists())

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
        self.seen.update(found)
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
    found = [
        f"{name} grew from {first['names'][name]} to {now}"
        for name, now in last["names"].items()
        if now > first["names"][name]
    ]
    for name, held in last["usage"].items():
        if name not in first["usage"]:
            found.append(f"{name} is new")
        else:
            found += [f"{name}: {each}" for each in Usage(**held).more_than(Usage(**first["usage"][name]))]
    return found
