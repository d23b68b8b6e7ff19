"""Starts the process from which ranks are forked, with torch loaded, so that it leaves nothing in the temporary folder.

multiprocessing reaches its server through a socket that has a name in the temporary folder, and a launcher that is
killed would leave that name behind. On Linux the launcher keeps a descriptor of the socket and removes the name.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from microp.store import unwritable

_PRELOAD = ["microp.worker", "torch._dynamo"]  # imported once for all ranks (the optimizer needs the latter)
_DESCRIPTORS = Path("/proc/self/fd")
_SEMAPHORES = Path("/dev/shm")


def start_forkserver() -> None:
    """Start the server unless it runs.

    Raises:
        WriteError: processes cannot share semaphores here.
        OSError: there is no temporary folder, or there are too few file descriptors.
    """
    _check_semaphores()
    multiprocessing.set_forkserver_preload(_PRELOAD)
    config: dict[str, Any] = vars(multiprocessing.current_process())["_config"]
    folder_before = config.get("tempdir")
    with tempfile.TemporaryDirectory(prefix="pymp-") as folder:
        config["tempdir"] = folder
        try:
            forkserver.ensure_running()
            if sys.platform == "linux":
                _remove_name(vars(forkserver)["_forkserver"])
        finally:
            config["tempdir"] = folder_before


def _remove_name(server: Any) -> None:
    """Reach the server through a descriptor of its socket, and remove the socket's name."""
    address = Path(server._forkserver_address)
    if address.parent != _DESCRIPTORS:
        server._forkserver_address = str(_DESCRIPTORS / str(os.open(address, os.O_PATH | os.O_CLOEXEC)))
        address.unlink()


def _check_semaphores() -> None:
    """Raise WriteError if no semaphore can be made, through which launcher and ranks end together."""
    try:
        multiprocessing.get_context("forkserver").Lock()
    except OSError as error:
        instead = "or use comms=threads"
        raise unwritable(_SEMAPHORES / "a semaphore", error, os.sysconf("SC_PAGE_SIZE"), instead) from error
