"""What ranks that torchrun has started tell each other before they connect, and how clocks are compared."""

import threading

import messages
import pytest
from conftest import small_job
from threads import in_threads
from torch.distributed import HashStore
from user import SMALL, microp

from microp.comms import Hosts
from microp.schedule.builders import one_f_one_b
from microp.worker import HostsError, hosts, launch_ranks

TWO = Hosts(("h0", "h1"), (0, 1))


def test_hosts_that_differ_are_told():
    same = {"python": "3.11.7", "chunks": 4}
    hosts._check_equal([{"facts": same}, {"facts": same}], TWO)
    with pytest.raises(HostsError) as raised:
        hosts._check_equal([{"facts": {"torch": "2.13.0", **same}}, {"facts": {**same, "chunks": 8}}], TWO)
    assert str(raised.value) == (
        "the hosts differ: torch is 2.13.0 on h0, null on h1; chunks is 4 on h0, 8 on h1: "
        "use the same installation, files and command on every host"
    )
    with pytest.raises(HostsError, match="rank 1, 2 of 3 did not come within 0.2 s"):
        hosts._exchange(HashStore(), 0, {}, 3, 0.2)


def test_an_address_that_does_not_answer_is_bad_input(tmp_path):
    launch = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29400"}
    done = microp(*SMALL, "chunks=2", folder=tmp_path, **launch, MASTER_ADDR="no.such.host.invalid")
    assert done.returncode == 2
    [said] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said.startswith("error: MASTER_ADDR=no.such.host.invalid MASTER_PORT=29400 cannot be reached from ")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("ahead_ns", [0, 10**15])
def test_clocks_are_compared(ahead_ns, monkeypatch):
    """Both threads have one clock; the second rank's is read as if it were ahead."""
    clock, ahead = hosts.perf_counter_ns, {}
    monkeypatch.setattr(hosts, "perf_counter_ns", lambda: clock() + ahead.get(threading.get_ident(), 0))

    def read(comms):
        ahead[threading.get_ident()] = ahead_ns * (comms.rank == 1)
        comms.barrier()
        return hosts.read_clocks(comms, TWO)

    first, second = in_threads(2, read)
    assert first == second
    assert first[0].offset_ns == 0
    assert abs(first[1].offset_ns + ahead_ns) <= first[1].residual_ns < 10**9
    before, after = hosts.Reading(1000, -500, 5), hosts.Reading(3000, -520, 5)  # one that runs faster is followed
    assert [hosts.drift_ns(before, after, own - 500) for own in (1000, 2000, 3000)] == [0, -10, -20]


def test_links_on_a_host_are_mailboxes_and_others_are_sockets(tmp_path):
    job = small_job(schedule=one_f_one_b(4, 2), timeout_s=30)
    assert launch_ranks(job, tmp_path, messages.links) == {
        0: {"1": "shm", "2": "tcp", "3": "tcp"},
        1: {"0": "shm", "2": "tcp", "3": "tcp"},
        2: {"0": "tcp", "1": "tcp", "3": "shm"},
        3: {"0": "tcp", "1": "tcp", "2": "shm"},
    }
