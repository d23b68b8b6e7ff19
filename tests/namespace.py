"""Disks of a test's own: a command gets its own mounts, which disappear with it, whatever happens to it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

WAYS = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])


@functools.cache
def _way() -> list[str] | None:
    """The command that gives another command its own mounts: as root, else in a user namespace; None if neither may."""
    probe = ["sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    able = (way for way in WAYS if shutil.which("unshare"))
    return next((way for way in able if subprocess.run([*way, *probe], capture_output=True).returncode == 0), None)


class Mounts:
    """A context with mounts of its own, which end with it; a test that needs it is skipped where that is not allowed.

    Attributes:
        pid: a process among these mounts, a shell in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        command = [*_way_or_skip(), "sh", "-e"]
        pipe = subprocess.PIPE
        self._shell = subprocess.Popen(
            command, cwd=self._folder, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.pid = self._shell.pid
        self.run(":")
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.kill()
        self._shell.communicate()

    def run(self, script: str) -> None:
        """Run lines of the shell, as to mount something."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{script}\necho done\n")
        said = self._shell.stdout.readline()
        assert said == "done\n", said + self._shell.stdout.read()


def _way_or_skip() -> list[str]:
    way = _way()
    if way is None:
        pytest.skip("neither root nor a user namespace, so no full or read-only disk can be mounted")
    return way
