"""Disks of a test's own: a command gets its own mounts, which disappear with it, whatever happens to it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest
from user import start

WAYS = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])


@functools.cache
def _way() -> list[str] | None:
    """The command that gives another command its own mounts: as root, else in a user namespace; None if neither may."""
    probe = ["sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    able = (way for way in WAYS if shutil.which("unshare"))
    return next((way for way in able if subprocess.run([*way, *probe], capture_output=True).returncode == 0), None)


def run_script(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount, in a folder; the test is skipped where that is not allowed."""
    way = _way()
    if way is None:
        pytest.skip("neither root nor a user namespace, so no full or read-only disk can be mounted")
    return start([*way, "sh", "-e", "-c", script], folder, timeout=600, **environment)
