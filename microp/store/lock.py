"""Lets only one process at a time run the same point.

::

    outputs/runs/<run id>/lock     {"pid": 4711, "host": "node3", "since": 1795339200.0}     there while it is held

The lock is the operating system's (`flock`), not the file: it ends with the process that holds it, however that ends.
What stands in the file only tells others who holds the lock; a killed process leaves the file, which then means
nothing. On a network file system the lock holds between hosts if the file system passes locks on, as NFS does unless
it is mounted with `nolock`.
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
    with _locked(folder, waiting) as file:
        if file is None:
            yield False
            return
        with suppress(OSError):  # a full disk: the lock holds all the same
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}).encode())
        try:
            yield True
        finally:
            with suppress(OSError):
                (folder / "lock").unlink()  # before the lock ends, so that who gets it next sees that it is gone


@contextmanager
def _locked(folder: Path, waiting: Callable[[Owner], None] | None) -> Iterator[IO[bytes] | None]:
    """Yield the lock's file, locked and empty, or None if the file system has no locks; raises as `hold`."""
    path, known = folder / "lock", None
    while True:
        with path.open("a+b", buffering=0) as file:
            locked = _try(file)
            if locked is None:
                path.unlink(missing_ok=True)
                yield None
                return
            if locked and _is_at(path, file):
                file.truncate(0)
                yield file
                return
            owner = _read(file)
        if locked:
            continue  # its holder has deleted the file in the meantime
        if waiting is None:
            raise LockedError(folder, owner)
        if owner != known and owner.pid is not None:  # a process that has only just got it writes in a moment
            waiting(known := owner)
        time.sleep(POLL_S)


def owner_of(folder: Path) -> Owner | None:
    """Return the process that holds the lock of a folder, or None; nothing is written."""
    try:
        with (folder / "lock").open("rb") as file:
            return _read(file) if _try(file, fcntl.LOCK_SH) is False else None
    except OSError:  # never locked
        return None


def _try(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> bool | None:
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


def _read(file: IO[bytes]) -> Owner:
    file.seek(0)
    try:
        found = json.loads(file.read())
        return Owner(int(found["pid"]), str(found["host"]), float(found["since"]))
    except (ValueError, KeyError, TypeError):
        return Owner(None, "", 0.0)


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Return whether a path still leads to this file; opening it makes NFS ask its server."""
    try:
        with path.open("rb") as other:
            return os.path.sameopenfile(file.fileno(), other.fileno())
    except FileNotFoundError:
        return False
