"""The verbs of every transport, mailboxes between real processes, and what is said when a peer does not do its part."""

import threading
from contextlib import suppress
from pathlib import Path

import messages
import pytest
import torch
from conftest import small_job
from threads import in_threads

from microp.comms import thread_comms
from microp.schedule.builders import gpipe
from microp.worker import RankError, launch_ranks


@pytest.mark.parametrize("where", ["shm", "tcp", "gloo", "threads"])
def test_verbs(where, tmp_path):
    if where == "threads":
        results = in_threads(3, messages.use_verbs)
    else:
        found = launch_ranks(small_job(schedule=gpipe(3, 1), backend=where), tmp_path, messages.verbs)
        results = [found[rank] for rank in range(3)]
        assert results[1].pop("short") == "rank 0 sent fewer bytes than the 44 of shape [11]"
    for rank, result in enumerate(results):
        before = (rank - 1) % 3
        assert result == {
            **{"next": [1, 2, None][rank], "prev": [None, 0, 1][rank], "got": [before + 1.0] * 3},
            "echo": [[n * 2 ** min(2, (rank - 1) % 3) for n in row] for row in ([0, 1, 2], [3, 4, 5])],
            **{"aligned": True, "sum": [6.0] * 3, "max": [3.0] * 3, "mean": [2.0] * 3},
            **{"all": ["from 0", "from 1", "from 2"], "long": [0, 200, 400]},
        }


def test_threads_see_another_size_and_keep_what_was_sent():
    first, second = thread_comms(2)
    tensor = torch.ones(10)
    first.send_tensor(tensor, 1)
    tensor.zero_()  # it may be written again
    assert second.recv_tensor([10], 0).tolist() == [1] * 10
    first.send_tensor(tensor, 1)
    with pytest.raises(ConnectionError, match=r"rank 0 sent torch.float32 \[10\], expected torch.float32 \[11\]"):
        second.recv_tensor([11], 0)
    with pytest.raises(ValueError, match="op='median' is not a reduction: use one of sum, product, min, max"):
        first.all_reduce(torch.ones(1), "median")


def test_a_failed_thread_wakes_the_others():
    first, second = thread_comms(2)
    threading.Timer(0.05, first.abort).start()
    with pytest.raises(ConnectionError, match="lost rank 0"):
        second.recv_tensor([1], 0)
    with pytest.raises(ConnectionError):
        second.barrier()


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
