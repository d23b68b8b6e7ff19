"""Names what the launcher makes outside of its own folders after its process, and removes what a killed one has left.

::

    /dev/shm/sem.microp-<namespace>-<pid>-...    semaphores, through which launcher and ranks end together
    <temporary folder>/microp-<namespace>-<pid>-...    the folder of a socket, for an instant; W&B's, during a sweep

multiprocessing removes its semaphores when the launcher has ended, even if that was killed, by a process of its own.
If that process was killed too, the next launch on this host does it. A pid counts within a namespace, that of a
container: files of another one are left alone.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from microp.comms import process_state

SEMAPHORES = Path("/dev/shm")
_NAMESPACE = Path("/proc/self/ns/pid")


def own_prefix() -> str:
    """Return how names of this process begin."""
    return f"microp-{_namespace()}-{os.getpid()}-"


@contextmanager
def named_semaphores() -> Iterator[None]:
    """Let multiprocessing name its new semaphores after this process."""
    config: dict[str, Any] = vars(multiprocessing.current_process())["_config"]
    before = config["semprefix"]
    config["semprefix"] = f"/{own_prefix().removesuffix('-')}"
    try:
        yield
    finally:
        config["semprefix"] = before


def remove_leftovers() -> None:
    """Remove what launchers have left that were killed, as far as this user may."""
    name = re.compile(rf"(?:sem\.)?microp-{re.escape(_namespace())}-([0-9]+)-.*")
    for folder in (SEMAPHORES, Path(tempfile.gettempdir())):
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            if (found := name.fullmatch(path.name)) and process_state(int(found[1])) is None:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _namespace() -> str:
    return "".join(filter(str.isdigit, str(_NAMESPACE.readlink()))) if _NAMESPACE.is_symlink() else "0"
