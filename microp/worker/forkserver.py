"""Starts the process from which ranks are forked, with torch loaded, so that it leaves nothing in the temporary folder.

multiprocessing reaches its server through a socket that has a name in the temporary folder, and a launcher that is
killed would leave that name behind. On Linux the launcher keeps a descriptor of the socket and removes the name. Such
a name may have at most 107 bytes, however long that of the temporary folder is: it is given through a descriptor of
the folder.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from microp.store import AGAIN, unwritable
from microp.worker.leftovers import SEMAPHORES, named_semaphores, own_prefix, remove_leftovers

# Imported once for all ranks, in this order; the optimizer needs the last one.
_PRELOAD = ["microp.worker", "torch._dynamo"]
_LIBRARY = "microp.worker.library"
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
_DESCRIPTORS = Path("/proc/self/fd")


def start_forkserver(ranks: int, reads_library: bool = False) -> None:
    """Start the server unless it runs, and remove what killed launchers have left.

    Args:
        ranks: the number of processes that are to be started from it.
        reads_library: whether they train on the text of Python's standard library, so that it is read once for all.

    Raises:
        WriteError: there is no room for the semaphores that the ranks share, or they cannot be made.
        OSError: there is no temporary folder, or there are too few file descriptors.
    """
    remove_leftovers()
    _check_semaphores(2 * ranks + 5)
    multiprocessing.set_forkserver_preload([*_PRELOAD, *[_LIBRARY] * reads_library])
    config: dict[str, Any] = vars(multiprocessing.current_process())["_config"]
    folder_before = config.get("tempdir")
    with _socket_folder() as folder:
        config["tempdir"] = folder
        try:
            with _huge_pages(), _held_back(signal.SIGINT):  # until `forkserver_setup` has begun
                forkserver.ensure_running()
            if sys.platform == "linux":
                _remove_name(vars(forkserver)["_forkserver"])
        finally:
            config["tempdir"] = folder_before


@contextmanager
def no_other_forkserver() -> Iterator[None]:
    """Let a process not start if the server has ended: multiprocessing would start another, with none of the above.

    Raises:
        ConnectionError: a process was to be started, and the server had ended.
    """
    server = vars(vars(forkserver)["_forkserver"])
    server["ensure_running"] = resource_tracker.ensure_running  # a connection to a server that has ended is refused
    try:
        yield
    finally:
        del server["ensure_running"]


@contextmanager
def _held_back(*signals: signal.Signals) -> Iterator[None]:
    """Let signals wait in this thread, and in a process that it starts until that asks for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _huge_pages() -> Iterator[None]:
    """Let glibc's malloc take huge pages in processes that are started here: to fork them takes half of the time."""
    before = os.environ.get(_TUNABLES, "")
    if _HUGE_PAGES in before:  # the user has chosen
        yield
        return
    os.environ[_TUNABLES] = ":".join(filter(None, [before, f"{_HUGE_PAGES}=1"]))
    try:
        yield
    finally:
        if before:
            os.environ[_TUNABLES] = before
        else:
            del os.environ[_TUNABLES]


@contextmanager
def _socket_folder() -> Iterator[str]:
    """Make a temporary folder and yield a path of it that is short."""
    with tempfile.TemporaryDirectory(prefix=own_prefix()) as folder:
        if sys.platform != "linux":
            yield folder
            return
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield str(_DESCRIPTORS / str(descriptor))
        finally:
            os.close(descriptor)


def _remove_name(server: Any) -> None:
    """Reach the server through a descriptor of its socket, and remove the socket's name."""
    address = Path(server._forkserver_address)
    if address.parent != _DESCRIPTORS:
        if (before := getattr(server, "socket_descriptor", None)) is not None:  # of a server that was killed
            os.close(before)
        server.socket_descriptor = os.open(address, os.O_PATH | os.O_CLOEXEC)
        server._forkserver_address = str(_DESCRIPTORS / str(server.socket_descriptor))
        address.unlink()


def _check_semaphores(count: int) -> None:
    """Raise WriteError unless `count` semaphores can exist at once: the launcher shares that many with its ranks."""
    made: list[Any] = []
    try:
        # A closed terminal and Ctrl-\ would end the process that removes semaphores; it ignores Ctrl-C itself.
        with _held_back(signal.SIGHUP, signal.SIGQUIT):
            resource_tracker.ensure_running()
        with named_semaphores():
            while len(made) < count:
                made.append(multiprocessing.get_context("forkserver").Lock())
    except OSError as error:
        instead = f"or use comms=threads; {AGAIN}"
        raise unwritable(SEMAPHORES / "a semaphore", error, count * os.sysconf("SC_PAGE_SIZE"), instead) from error


def early_output() -> str:
    """Return what the server and its ranks have printed before a rank had its log."""
    server = vars(forkserver)["_forkserver"]
    try:
        return Path(f"/proc/{server._forkserver_pid}/fd/2").read_text(errors="replace")
    except OSError:
        return ""
