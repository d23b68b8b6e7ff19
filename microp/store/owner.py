"""Names the process that runs an attempt in `status.json`, and says later whether it still runs.

::

    pid 4711  host box  boot 2f1c...  namespace pid:[4026531836]  process_started 81234567
              │         │             │                           └ ticks since the boot: another if a pid is reused
              │         │             └ of the container in which the pid counts
              │         └ of the running system: after a reboot all of its processes have gone
              └ the processes of another host cannot be seen from here
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microp.settings import this_host

_ENDED = ("Z", "X")  # a zombie, which its parent has not waited for, has ended


def this_process() -> dict[str, Any]:
    """Return what identifies this process on this and on other hosts; null for what the system does not tell."""
    return {"pid": os.getpid(), **this_host(), "process_started": _started(os.getpid())}


def has_gone(owner: Mapping[str, Any]) -> bool | None:
    """Return whether a process has ended; None if that cannot be known here.

    Args:
        owner: what `this_process` returned in that process. Records of older runs have a `pid` alone.
    """
    here = this_host()
    if "host" not in owner or owner["host"] != here["host"]:
        return None
    if owner.get("boot") != here["boot"]:
        return True
    if owner.get("namespace") != here["namespace"]:
        return None
    return _started(owner.get("pid", 0)) != owner.get("process_started")


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None if it has ended.

    On systems other than Linux it is 0 for every process that exists.
    """
    try:
        if sys.platform != "linux":
            os.kill(pid, 0)
            return 0
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()  # from the third field, the state, on
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:  # os.kill: it exists, and is another user's
        return 0
    return None if fields[0] in _ENDED else int(fields[19])
