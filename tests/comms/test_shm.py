"""Mailboxes between real processes, in shared memory and over TCP: what goes through them, and what a kill leaves."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import messages
import pytest
from conftest import small_job

from microp.comms.waiting import is_alive
from microp.schedule.builders import gpipe
from microp.worker import RankError, launch_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory needs Linux")
BOTH = pytest.mark.parametrize("backend", ["shm", "tcp"])


def run(count: int, entry, folder: Path, **changes):
    return launch_ranks(small_job(schedule=gpipe(count, 1), **changes), folder, 3, entry)


@BOTH
def test_mailboxes_give_what_was_sent(backend, tmp_path):
    """Uneven shapes and another type in one mailbox, which is as large as the largest of them."""
    seen = run(2, messages.use_mailboxes, tmp_path, backend=backend)[1]
    shapes = [(5, 3), (7,), (1, 2, 2), (2, 2)]
    once = [(shape, [10.0 * step + tag]) for step in range(3) for tag, shape in enumerate(shapes)]
    assert seen["values"] == 2 * once
    assert seen["aligned"] == 24 * [True]


@BOTH
def test_a_matrix_that_lies_column_by_column_arrives_in_order(backend, tmp_path):
    assert run(2, messages.send_transposed, tmp_path, backend=backend)[1] == [[0, 3], [1, 4], [2, 5]]


@BOTH
def test_what_was_not_announced_goes_through_gloo(backend, tmp_path):
    results = run(2, messages.use_a_tag_that_was_not_announced, tmp_path, backend=backend)
    assert results[1] == {0: (f"microp.comms.{backend}", [0, 1, 2]), 8: ("microp.comms.base", [8, 9, 10])}
    assert results[0] == {"too large": "torch.float32 [4] does not fit into a mailbox of 12 bytes"}


@BOTH
def test_a_wait_ends_in_time_and_costs_no_core(backend, tmp_path):
    """Three ranks, which on a small machine are more than its cores."""
    results = run(3, messages.wait_for_nothing, tmp_path, timeout_s=3, backend=backend)
    for rank in (1, 2):
        said, took, spent = results[rank]
        assert said == "waited 3 s for rank 0"
        assert 3 <= took < 20
        assert spent < 0.3


def holders(inode: str) -> set[int]:
    """The processes that have a segment mapped or open."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {int(path.name) for path in processes if inode in {*mapped(path), *opened(path)}}


def mapped(process: Path) -> Iterator[str]:
    """The inodes of segments that a process has mapped."""
    with suppress(OSError):  # it has ended, or is somebody else's
        for line in (process / "maps").read_text().splitlines():
            if "memfd:microp" in line:
                yield line.split()[4]


def opened(process: Path) -> Iterator[str]:
    """The inodes of segments that a process has open."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if "memfd:microp" in str(link.readlink()):
                    yield str(link.stat().st_ino)


def test_a_killed_rank_is_missed_and_its_segment_goes_with_it(tmp_path):
    names = set(Path("/dev/shm").iterdir())
    with pytest.raises(RankError, match="rank 0 was killed by SIGKILL"):
        run(3, messages.outlive_the_sender, tmp_path)
    for rank in (1, 2):
        took, said = (tmp_path / f"said{rank}").read_text().split(maxsplit=1)
        assert said.startswith("lost rank 0: its process")
        assert float(took) < 20
    pids, inodes = zip(*((tmp_path / f"segment{rank}").read_text().split() for rank in range(3)), strict=True)
    assert len(set(pids)) == 3
    assert len(set(inodes)) == 1  # one segment, which all of them had mapped
    assert holders(inodes[0]) == set()
    own = f"-{os.getpid()}-"  # other tests run at the same time
    assert {path for path in Path("/dev/shm").iterdir() if "microp" in path.name and own in path.name} <= names


def test_a_killed_rank_is_missed_over_tcp(tmp_path):
    with pytest.raises(RankError, match="rank 0 was killed by SIGKILL"):
        run(3, messages.outlive_the_sender, tmp_path, backend="tcp")
    for rank in (1, 2):
        took, said = (tmp_path / f"said{rank}").read_text().split(maxsplit=1)
        assert said == "lost rank 0: the connection was closed"
        assert float(took) < 20


def test_a_process_that_nobody_has_waited_for_is_gone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and left a zombie
    assert not is_alive(child.pid)
    child.communicate()
    assert not is_alive(child.pid)


def test_holders_are_found():
    """The look at all processes can fail: it sees an open segment and a mapped one."""
    descriptor = os.memfd_create("microp")
    os.ftruncate(descriptor, 64)
    inode = str(os.fstat(descriptor).st_ino)
    assert holders(inode) == {os.getpid()}
    segment = mmap.mmap(descriptor, 64)
    os.close(descriptor)
    assert holders(inode) == {os.getpid()}
    assert inode in set(mapped(Path("/proc/self")))
    segment.close()
    assert holders(inode) == set()
