"""Mailboxes between real processes, in shared memory and over TCP: what goes through them, and what a kill leaves."""

import os
from contextlib import suppress
from pathlib import Path

import messages
import pytest
from conftest import small_job

from microp.schedule.builders import gpipe
from microp.worker import RankError, launch_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory needs Linux")
BOTH = pytest.mark.parametrize("backend", ["shm", "tcp"])


def run(count: int, entry, folder: Path, **changes):
    return launch_ranks(small_job(schedule=gpipe(count, 1), **changes), folder, entry)


@BOTH
def test_mailboxes_give_what_was_sent(backend, tmp_path):
    """Uneven shapes and another type in one mailbox, which is as large as the largest of them."""
    sender, receiver = run(2, messages.use_mailboxes, tmp_path, backend=backend).values()
    shapes = [(5, 3), (7,), (1, 2, 2), (2, 2)]
    once = [(shape, [10.0 * step + tag]) for step in range(3) for tag, shape in enumerate(shapes)]
    assert receiver["values"] == 2 * once
    assert receiver["aligned"] == 24 * [True]
    assert receiver["column by column"] == [[0, 3], [1, 4], [2, 5]]
    assert receiver["not announced"] == [8, 9, 10]
    assert receiver["boxes"] == [f"microp.comms.{backend}", "microp.comms.base"]
    assert sender["too large"] == "torch.float32 [16] does not fit into a mailbox of 60 bytes"


@BOTH
def test_a_wait_ends_in_time_and_costs_no_core(backend, tmp_path):
    results = run(3, messages.wait_for_nothing, tmp_path, timeout_s=3, backend=backend)
    for rank in (1, 2):
        said, took, spent = results[rank]
        assert said == "waited 3 s for rank 0"
        assert 3 <= took < 20
        assert spent < 0.3


def test_a_rank_that_is_still_at_the_end_does_not_miss_those_that_have_left(tmp_path):
    assert run(3, messages.leave_one_by_one, tmp_path, backend="tcp") == dict.fromkeys(range(3), "came")


def holders(inode: str) -> list[str]:
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended, or is somebody else's
            lines = [line.split() for line in maps.read_text().splitlines() if "memfd:microp" in line]
            found += [maps.parent.name for words in lines if words[4] == inode]
    return found


@pytest.mark.parametrize(("backend", "said"), [("shm", "lost rank 0: its process"), ("tcp", "lost rank 0: the conn")])
def test_a_killed_rank_is_missed_and_leaves_nothing(backend, said, tmp_path):
    with pytest.raises(RankError, match="rank 0 was killed by SIGKILL"):
        run(3, messages.outlive_the_sender, tmp_path, backend=backend)
    for rank in (1, 2):
        took, error = (tmp_path / f"said{rank}").read_text().split(maxsplit=1)
        assert error.startswith(said)
        assert float(took) < 20
    segments = {(tmp_path / f"segment{rank}").read_text() for rank in range(3)}
    assert len(segments) == 1  # of shared memory one, which all of them had mapped
    assert (segments == {""}) == (backend == "tcp")
    assert holders(segments.pop()) == []
