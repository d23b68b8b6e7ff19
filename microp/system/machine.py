"""What this machine has."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # what torchrun sets; others set some of them


_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


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


@cache
def this_host() -> dict[str, str | None]:
    """Return what tells this system from others: its name, its boot, and the container in which process ids count."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    is_linux = sys.platform == "linux"
    return {
        "host": platform.node(),
        "boot": boot.read_text().strip() if is_linux and boot.exists() else None,
        "namespace": str(namespace.readlink()) if is_linux and namespace.is_symlink() else None,
    }


def no_compiler() -> list[str]:
    """Return what this machine lacks to compile layers for its processor, in at most one sentence."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(compiler) is None:
        return [
            f"compile=true needs a C++ compiler, and {compiler} is not here: install g++, name another one by the "
            "environment variable CXX, or use compile=false"
        ]
    if not header.exists():
        return [f"compile=true needs Python's headers, and {header} is not here: install them, or use compile=false"]
    return []


def is_joined() -> bool:
    """Return whether torchrun started this process as one of the ranks; RANK alone is set by others too."""
    return all(os.environ.get(name, "").isdecimal() for name in TORCHRUN)


def is_over_hosts() -> bool:
    """Return whether torchrun started some of the ranks on other hosts."""
    return is_joined() and os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")
