"""Lets only one process at a time run the same point, and tells which process that is and whether it has gone.

::

    outputs/runs/<run id>/lock     there while it is held     ┐  pid 4711  host box  boot 2f1c...  ...
    attempt-<n>/status.json        who runs the attempt       ┘  namespace pid:[40265...]  process_started 81234567

The lock is the operating system's (`flock`, by filelock), not the file: it ends with the process that holds it,
however that ends. What stands in the file only tells others who holds the lock. On a network file system the lock
holds between hosts if the file system passes locks on, as NFS does unless it is mounted with `nolock`.

`boot` and `namespace` say in which running system and which container a pid counts; `process_started` is in ticks since
the boot and differs if a pid is given again. Processes of another host cannot be seen from here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from microp.records.files import unwritable
from microp.system import process_started, this_host

POLL_S = 0.5  # between two tries to get a lock that another process holds


class LockedError(RuntimeError):
    """Another process holds the lock; the message says which one."""

    def __init__(self, folder: Path, owner: str) -> None:
        super().__init__(
            f"{folder.name} is being run by {owner}: wait until it has ended, or stop it (it holds {folder / 'lock'})"
        )


@contextmanager
def hold(folder: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a run's or a sweep's folder, which is made if it is missing, also if it goes meanwhile.

    `waiting` is called once if another process is waited for, with its name; None: do not wait.

    Raises:
        LockedError: another process holds the lock, and `waiting` is None.
        WriteError: the folder or the file cannot be made, or the file system has no locks.
    """
    path = folder / "lock"
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = _named(_read(path))
        if waiting is None:
            raise LockedError(folder, owner) from None
        waiting(owner)
        lock.acquire(poll_interval=POLL_S)
    except OSError as error:
        raise unwritable(path, error) from error
    with suppress(OSError):  # a full disk: the lock holds all the same
        path.write_text(json.dumps({**this_process(), "since": time.time()}))
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before the lock ends, so that who gets it next sees that it is gone
        lock.release()


def owner_of(folder: Path) -> str | None:
    """Return the name of the process that holds the lock of a folder, or None; nothing is written."""
    owner = _read(folder / "lock")
    return None if not owner or has_gone(owner) else _named(owner)


def _read(path: Path) -> dict[str, Any]:
    """Return what its holder wrote into a lock's file; nothing if it has not yet, or has gone."""
    try:
        owner: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return owner


def _named(owner: Mapping[str, Any]) -> str:
    if not owner:
        return "another process"
    since = time.strftime("%H:%M:%S", time.localtime(owner["since"]))
    return f"process {owner['pid']} on {owner['host']} (since {since})"


def this_process() -> dict[str, Any]:
    """Return what identifies this process on this and on other hosts; None for what the system does not tell."""
    return {"pid": os.getpid(), **this_host(), "process_started": process_started(os.getpid())}


def has_gone(owner: Mapping[str, Any]) -> bool | None:
    """Return whether the process has ended in which `this_process` returned this; None if that cannot be known here."""
    here = this_host()
    if owner.get("host") != here["host"]:
        return None
    if owner.get("boot") != here["boot"]:
        return True
    if owner.get("namespace") != here["namespace"]:
        return None
    return bool(process_started(owner["pid"]) != owner["process_started"])
