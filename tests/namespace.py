"""Disks of a test's own: a command gets its own mounts, which disappear with it, whatever happens to it."""

import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

WAYS = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])  # as root, and as others


class Mounts:
    """A context with mounts of its own, which end with it; a test that needs it is skipped where that is not allowed.

    Its `pid` is a process among these mounts, a shell in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        probe = ["sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
        able = (way for way in WAYS if shutil.which("unshare"))
        ways = [way for way in able if subprocess.run([*way, *probe], capture_output=True).returncode == 0]
        if not ways:
            pytest.skip("neither root nor a user namespace, so no full or read-only disk can be mounted")
        self._folder, self._way = folder, ways[0]

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._shell = subprocess.Popen(
            [*self._way, "sh", "-e"], cwd=self._folder, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
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
        print(script, "echo done", sep="\n", file=self._shell.stdin, flush=True)
        said = self._shell.stdout.readline()
        assert said == "done\n", said + self._shell.stdout.read()
