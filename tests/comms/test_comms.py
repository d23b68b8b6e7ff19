"""Both implementations of the verbs, and what they say when a peer does not do its part."""

import threading

import messages
import pytest
import torch
from conftest import small_job
from threads import in_threads

from microp.comms import thread_comms
from microp.schedule.builders import gpipe
from microp.worker import launch_ranks


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
