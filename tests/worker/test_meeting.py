"""What ranks that torchrun has started tell each other before they connect, and how clocks are compared."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import messages
import pytest
from conftest import small_job
from threads import in_threads
from torch.distributed import HashStore
from user import SMALL, begin, microp
from warm import Command

from microp.comms import Hosts, interface_of, own_address
from microp.schedule.builders import one_f_one_b
from microp.worker import HostsError, clocks, launch_ranks, meeting


def card(name: str, **facts):
    return {"host": {"host": name, "boot": "b", "namespace": "n"}, "address": "10.0.0.1", "facts": facts}


def test_hosts_that_differ_are_told():
    same = {"python": "3.11.7", "chunks": 4}
    meeting._check_equal([card("h0", **same), card("h1", **same)], Hosts(("h0", "h1"), (0, 1)))
    with pytest.raises(HostsError) as raised:
        meeting._check_equal(
            [card("h0", torch="2.13.0", **same), card("h1", torch="2.12.1", python="3.11.7", chunks=8)],
            Hosts(("h0", "h1"), (0, 1)),
        )
    assert str(raised.value) == (
        "the hosts differ: torch is 2.13.0 on h0, 2.12.1 on h1; chunks is 4 on h0, 8 on h1: "
        "use the same installation, files and command on every host"
    )


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(HostsError, match="rank 1, 2 of 3 did not come within 0.2 s"):
        meeting._exchange(HashStore(), 0, card("h0"), 3, 0.2)


def test_an_address_that_does_not_answer_is_bad_input(tmp_path):
    launch = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29400"}
    done = microp(*SMALL, "chunks=2", folder=tmp_path, **launch, MASTER_ADDR="no.such.host.invalid")
    assert done.returncode == 2
    [said] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said.startswith("error: MASTER_ADDR=no.such.host.invalid MASTER_PORT=29400 cannot be reached from ")
    assert not (tmp_path / "outputs").exists()


def test_the_interface_that_reaches_an_address():
    assert own_address("localhost", 1) in ("127.0.0.1", "::1")
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("10.255.255.254") is None


@pytest.mark.parametrize("ahead_ns", [0, 10**15])
def test_clocks_are_compared(ahead_ns, monkeypatch):
    """Both threads have one clock; the second rank's is read as if it were ahead."""
    clock, own = clocks.perf_counter_ns, {}
    monkeypatch.setattr(clocks, "perf_counter_ns", lambda: clock() + own.get(clocks_thread(), 0))

    def read(comms):
        own[clocks_thread()] = ahead_ns * (comms.rank == 1)
        comms.barrier()
        return clocks.read_clocks(comms, Hosts(("h0", "h1"), (0, 1)))

    first, second = in_threads(2, read)
    assert first == second
    assert first[0].offset_ns == 0
    assert abs(first[1].offset_ns + ahead_ns) <= first[1].residual_ns < 10**9


def clocks_thread() -> int:
    import threading

    return threading.get_ident()


def test_a_clock_that_runs_faster_is_followed():
    before, after = clocks.Reading(1000, -500, 5), clocks.Reading(3000, -520, 5)
    assert [clocks.drift_ns(before, after, own - 500) for own in (1000, 2000, 3000)] == [0, -10, -20]


def test_links_on_a_host_are_mailboxes_and_others_are_sockets(tmp_path):
    """Four processes that are told to be on two hosts: they meet, and every message of the schedule arrives."""
    job = small_job(schedule=one_f_one_b(4, 2), timeout_s=30)
    found = launch_ranks(job, tmp_path, 3, messages.links)
    assert found == {
        0: {"1": "shm", "2": "tcp", "3": "tcp"},
        1: {"0": "shm", "2": "tcp", "3": "tcp"},
        2: {"0": "tcp", "1": "tcp", "3": "shm"},
        3: {"0": "tcp", "1": "tcp", "2": "shm"},
    }


def begun(folder: Path, text: str, *arguments: str) -> Command:
    """Start a program, and wait until it says that it is ready."""
    (folder / "program.py").write_text(text)
    child = begin(*arguments, folder=folder, program="program")
    while "ready\n" not in child.said():
        assert child.poll() is None, child.said()
        time.sleep(0.01)
    return child


WAITS_FOR_OTHERS = """
from datetime import timedelta
from torch.distributed import TCPStore
from microp.worker import meeting
def wait(*_):
    print("ready", flush=True)
    TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=timedelta(seconds=60))
meeting._join = wait
meeting.join(None, {})
"""


def test_ctrl_c_ends_a_rank_that_waits_for_others_at_once(tmp_path):
    child = begun(tmp_path, WAITS_FOR_OTHERS)
    child.send_signal(signal.SIGINT)
    child.communicate(30)
    assert child.returncode == -signal.SIGINT


def test_a_name_that_is_loopback_here_is_not_listened_on(monkeypatch):
    """On Debian a host's own name is 127.0.1.1; then the way to the other hosts counts."""
    cards = [{"address": "127.0.0.1"}, {"address": "10.1.2.3"}]
    asked = []
    monkeypatch.setenv("MASTER_PORT", "29400")
    for library in ("GLOO", "NCCL"):
        monkeypatch.setenv(f"{library}_SOCKET_IFNAME", "")
        monkeypatch.delenv(f"{library}_SOCKET_IFNAME")
    monkeypatch.setattr(meeting, "own_address", lambda other, _: asked.append(other) or "10.1.2.4")
    monkeypatch.setattr(meeting, "interface_of", {"10.1.2.4": "eth7"}.get)
    meeting._choose_interface(cards, Hosts(("h0", "h1"), (0, 1)), 0)
    assert asked == ["10.1.2.3"]
    assert [os.environ.pop(f"{library}_SOCKET_IFNAME") for library in ("GLOO", "NCCL")] == ["eth7", "eth7"]
    meeting._choose_interface(cards[:1] * 2, Hosts(("h0",), (0, 0)), 0)
    assert [os.environ.pop(f"{library}_SOCKET_IFNAME") for library in ("GLOO", "NCCL")] == ["lo", "lo"]
