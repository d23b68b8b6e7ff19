"""Lets only one process at a time run the same point.

::

    outputs/runs/<run id>/lock     {"pid": 4711, "host": "node3", "since": 1795339200.0}     empty: nobody holds it

The lock is the operating system's (`flock`), not the file: it ends with the process that holds it, however that ends,
and the file stays. What stands in the file only tells others who holds the lock. On a network file system the lock
holds between hosts if the file system passes locks on, as NFS does unless it is mounted with `nolock`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

POLL_S = 0.5  # between two tries to get a lock that another process holds
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


class Owner(NamedTuple):
    """The process that holds a lock.

    Attributes:
        pid: its number; None if the file does not tell.
        host: the name of its host.
        since: when it got the lock, in seconds since 1970.
    """

    pid: int | None
    host: str
    since: float

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        return f"process {self.pid} on {self.host} (since {time.strftime('%H:%M:%S', time.localtime(self.since))})"


class LockedError(RuntimeError):
    """Another process holds the lock; the message says which one.

    Attributes:
        owner: that process.
    """

    def __init__(self, folder: Path, owner: Owner) -> None:
        super().__init__(
            f"{folder.name} is being run by {owner}: wait until it has ended, or stop it (it holds {folder / 'lock'})"
        )
        self.owner = owner


@contextmanager
def hold(folder: Path, waiting: Callable[[Owner], None] | None = None) -> Iterator[bool]:
    """Hold the lock of a folder, which is made if it is missing.

    Args:
        folder: a run's folder, or that of a sweep.
        waiting: called once for each other process that is waited for; None: do not wait.

    Yields:
        whether the lock is held; False if the file system has no locks.

    Raises:
        LockedError: another process holds the lock, and `waiting` is None.
        OSError: the folder or the file cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        known: Owner | None = None
        while not (locked := _try(file)):
            if locked is None:
                yield False
                return
            owner = _read(file)
            if waiting is None:
                raise LockedError(folder, owner)
            if owner != known and owner.pid is not None:  # a process that has only just got it writes in a moment
                waiting(known := owner)
            time.sleep(POLL_S)
        with suppress(OSError):  # a full disk: the lock holds all the same
            _write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}))
        try:
            yield True
        finally:
            with suppress(OSError):
                _write(file, "")


def owner_of(folder: Path) -> Owner | None:
    """Return the process that holds the lock of a folder, or None; nothing is written."""
    try:
        with (folder / "lock").open() as file:
            return _read(file) if _try(file, fcntl.LOCK_SH) is False else None
    except OSError:  # never locked
        return None


def _try(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool | None:
    """Return whether the lock was free and is now held; None if the file system has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _read(file: IO[str]) -> Owner:
    file.seek(0)
    try:
        found = json.loads(file.read())
        return Owner(int(found["pid"]), str(found["host"]), float(found["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner(None, "", 0.0)


def _write(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()
