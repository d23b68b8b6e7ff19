"""Slurm's commands: submit a job, list one's jobs, ask the accounting how a job ended, cancel jobs.

`squeue` also lists jobs that have ended, for some minutes. Later only the accounting knows them, and not every cluster
has one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)  # states of a job that runs no more; a job that is started again is PENDING
LONGEST_S = 120  # that a command of Slurm may take
_COLUMNS = "%i|%T|%r|%j|%Z"  # what `QueuedJob` has, in its order


class RefusedError(RuntimeError):
    """Slurm does not take a job; the message is sbatch's."""


class UnreachableError(RuntimeError):
    """Slurm does not answer; the message is that of its command."""


class QueuedJob(NamedTuple):
    """A job of this user.

    Attributes:
        id: its number.
        state: PENDING, RUNNING, COMPLETED, ...
        reason: why it is pending, or None.
        name: its name.
        folder: the folder in which it runs.
    """

    id: str
    state: str
    reason: str
    name: str
    folder: str


def submit(path: Path) -> str:
    """Submit a batch file and return the id of its job.

    Raises:
        RefusedError: Slurm does not take it.
    """
    code, out, err = _run("sbatch", "--parsable", str(path))
    if code:
        raise RefusedError(err)
    return out.strip().partition(";")[0]  # the name of the cluster may follow


def jobs() -> dict[str, QueuedJob]:
    """Return this user's jobs by their ids: those in the queue, and those that ended not long ago.

    Raises:
        UnreachableError: Slurm does not answer.
    """
    code, out, err = _run("squeue", "--me", "--states=all", "--noheader", f"--format={_COLUMNS}")
    if code:
        raise UnreachableError(err)
    found = [QueuedJob(*line.split("|", 4)) for line in out.splitlines() if line.count("|") >= 4]
    return {job.id: job for job in found}


def ended_as(job: str) -> str | None:
    """Return the state in which a job ended, from the accounting; None where there is none, or it does not know it."""
    code, out, _ = _run("sacct", f"--jobs={job}", "--noheader", "--allocations", "--parsable2", "--format=State")
    states = out.split()  # of CANCELLED by 1000 the first word
    return states[0] if not code and states and states[0] in ENDED else None


def cancel(ids: Iterable[str]) -> None:
    """Cancel jobs; those that have ended already are left as they are."""
    if words := list(ids):
        _run("scancel", *words)


def _run(*command: str) -> tuple[int, str, str]:
    """Run a command and return its exit code and what it printed; the error on one line, as it is shown to users."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return 127, "", f"{command[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return 124, "", f"{command[0]} does not answer within {LONGEST_S} s"
    return done.returncode, done.stdout, " ".join(done.stderr.split())
