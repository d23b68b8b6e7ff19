"""What this machine has and reaches, and sizes in bytes.

::

    WANDB_BASE_URL ─ server ─► https://api.wandb.ai ─ out_of_reach ─► None, or why no connection can be made
"""

from __future__ import annotations

import netrc
import os
import platform
import socket
import sys
from functools import cache
from pathlib import Path
from urllib.parse import urlparse

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # what torchrun sets; others set some of them
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
KIB, MIB, GIB = 2**10, 2**20, 2**30
BYTES = 256  # different bytes: the vocabulary of a model of text
_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB}
_PATIENCE_S = 3.0
_PORTS = {"http": 80, "https": 443}
_EXITING = 0x4  # in the flags of a process: PF_EXITING of Linux's sched.h


@cache
def memory_bytes() -> int:
    """Return the bytes of memory that the processes of this machine, or of this container, can have."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(_LIMIT.read_text()))
    except (OSError, ValueError):  # there is no such file, or no limit
        return installed


@cache
def processor() -> str:
    """Return the processor's model, or an empty string if the system does not give it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def queued_ns(before: int | None = 0) -> int | None:
    """Return how long this thread could have run and had no core, less the time before; None if the system is silent.

    Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat, the second field.
    """
    try:
        now = int(Path("/proc/thread-self/schedstat").read_bytes().split()[1])
    except (OSError, IndexError):
        return None
    return None if before is None else now - before


@cache
def this_host() -> dict[str, str | None]:
    """Return what tells this system from others: its name, its boot, and the container in which process ids count."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")  # of Linux
    return {
        "host": platform.node(),
        "boot": boot.read_text().strip() if boot.exists() else None,
        "namespace": str(namespace.readlink()) if namespace.is_symlink() else None,
    }


def process_started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot (0 if it is not Linux); None if it has ended.

    One that has begun to end has ended: the system closes its connections before it makes it a zombie.
    """
    try:
        if sys.platform != "linux":
            os.kill(pid, 0)
            return 0
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()  # from the third field, the state, on
    except (FileNotFoundError, ProcessLookupError):  # it ended, perhaps between opening and reading
        return None
    return None if fields[0] in "ZX" or int(fields[6]) & _EXITING else int(fields[19])


def is_joined() -> bool:
    """Return whether torchrun started this process as one of the ranks; RANK alone is set by others too."""
    return all(os.environ.get(name, "").isdecimal() for name in _TORCHRUN)


def is_over_hosts() -> bool:
    """Return whether torchrun started some of the ranks on other hosts."""
    return is_joined() and os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")


def size_text(nbytes: float) -> str:
    """Return a number of bytes with three digits in the largest unit of which it has one: `300 B`, `1.5 MiB`."""
    unit = next((unit for unit, size in _UNITS.items() if nbytes >= size), "B")
    number = nbytes / _UNITS.get(unit, 1)
    return f"{number:.0f} {unit}" if number >= 1000 or unit == "B" else f"{number:.3g} {unit}"


def server() -> str:
    """Return the address of W&B's server."""
    return os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"


def has_key() -> bool:
    """Return whether W&B's client finds a key: in WANDB_API_KEY or in the netrc file, for its server."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(urlparse(server()).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def out_of_reach() -> str | None:
    """Return why the server takes no connection, with its address; None if it does. It is tried once, for 3 s."""
    reason = _refusal(server())
    return f"W&B's server {server()} cannot be reached ({reason})" if reason else None


@cache
def _refusal(address: str) -> str | None:
    """Return why no connection to an address, or to the proxy before it, can be made."""
    url = urlparse(address)
    import urllib.request  # it loads ssl, half of the time until Ctrl-C is seen

    proxy = urllib.request.getproxies().get(url.scheme)
    if proxy and not urllib.request.proxy_bypass(url.hostname or ""):
        url = urlparse(proxy if "://" in proxy else f"http://{proxy}")
    try:
        port = url.port or _PORTS.get(url.scheme, 443)
        socket.create_connection((url.hostname or "", port), _PATIENCE_S).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
