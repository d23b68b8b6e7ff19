"""What a test may leave behind on this machine, and one line of the table of results.

Every process of the soak test inherits a mark in its environment, so that it is found whatever its parent is by
then, and a folder for temporary files that no other program uses.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MARK = "MICROP_SOAK"
POLL_S = 0.05
SLACK = (8.0, 0, 0, 0)  # what `Usage` of a process may grow by, in its order


@dataclass
class Result:
    """One line of the table: what was done, how often, how often that passed, and why not."""

    what: str
    tried: int = 0
    passed: int = 0
    slowest_s: float = 0.0  # the longest time until every process had ended
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, problems: Iterable[str], seconds: float = 0.0) -> None:
        """Add one try; it passed if there are no problems."""
        before = self.reasons.total()
        self.reasons.update(problems)
        self.tried += 1
        self.passed += self.reasons.total() == before
        self.slowest_s = max(self.slowest_s, seconds)

    def text(self) -> str:
        line = f"{self.what:<44}{self.passed:>4} of {self.tried:>3} passed, the slowest in {self.slowest_s:.1f} s"
        return "\n".join([line, *(f"    {times} x {reason}" for reason, times in self.reasons.items())])


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

    def new_folder(self) -> Path:
        folder = self.folder / "tries" / str(time.monotonic_ns())
        folder.mkdir(parents=True)
        return folder

    def processes(self, known: Collection[int] = ()) -> dict[int, str]:
        """The marked processes that run, less this one and those that are `known` -> their command lines."""
        commands = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) in {os.getpid(), *known}:
                continue
            try:
                if f"{MARK}={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                if (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    continue
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # it has ended, or is another user's
                continue
        return commands

    def still_there(self, known: Collection[int], seconds: float = 30) -> list[str]:
        """The processes that a command has left; `known` are those that were there before it."""
        wait_until(lambda: not self.processes(known), seconds)
        return [f"still runs: {command[:100]}" for command in self.processes(known).values()]


def wait_until(is_so: Callable[[], object], seconds: float) -> bool:
    """Wait at most so long until it is so, and say whether it is.

    The polls are counted, because this process and all others may be stopped for minutes, as by the terminal's Ctrl-Z.
    """
    for _ in range(round(seconds / POLL_S)):
        if is_so():
            return True
        time.sleep(POLL_S)
    return bool(is_so())


class Usage(NamedTuple):
    """What one process holds; segments are mappings of shared memory that has no name."""

    memory_mib: float
    descriptors: int
    threads: int
    segments: int

    def more_than(self, early: Usage) -> list[str]:
        """What has grown since an earlier look."""
        each = zip(Usage._fields, early, self, SLACK, strict=True)
        return [f"{name} grew from {was:.0f} to {now:.0f}" for name, was, now, slack in each if now > was + slack]


def usage(pid: int) -> Usage | None:
    """What a process holds; None if it has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        segments = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
        return Usage(int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]), segments)
    except (OSError, KeyError):
        return None
