"""Reads the state of another process of this host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ENDED = ("Z", "X")  # a zombie, which its parent has not waited for, has ended
_EXITING = 0x4  # in the flags: PF_EXITING of Linux's sched.h


def state(pid: int) -> str | None:
    """Return the letter by which Linux names the state of a process, such as R, S, T; None if it has ended.

    A process that has begun to end has ended: the system closes its connections before it makes it a zombie.
    On other systems a process that exists is in state R.
    """
    try:
        if sys.platform != "linux":
            os.kill(pid, 0)
            return "R"
        letter, _, _, _, _, _, flags, *_ = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):  # it ended, perhaps between opening and reading
        return None
    return None if letter in _ENDED or int(flags) & _EXITING else letter


def is_alive(pid: int) -> bool:
    """Return whether process `pid` runs."""
    return state(pid) is not None
