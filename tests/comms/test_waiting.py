"""Waiting for a moment, what becomes of it when the host oversleeps, and how long a rank waits for another one."""

import os
import time
from time import perf_counter_ns

import pytest
import torch
from emulation import opened, workload

from microp.comms import Countdown, DelayedComms, Pacer, delay, thread_comms, waiting
from microp.comms.waiting import LONG_NS, SHORT_NS, Patience
from microp.device import emulated
from microp.schedule import Action, Op


def test_a_wait_is_never_short_and_seldom_long():
    late = []
    for wait_ns in (-(10**9), 0, 50_000, 300_000, 2_000_000) * 5:
        began = perf_counter_ns()
        delay.sleep_until(began + wait_ns)
        late.append(perf_counter_ns() - began - max(0, wait_ns))
    assert min(late) >= 0
    assert sorted(late)[len(late) // 4] < 2_000_000  # the rest is for a busy machine


class Host:
    """A clock that is told what the time is, and oversleeps by 30."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1000
        monkeypatch.setattr(delay, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(delay, "sleep_until", self.sleep_until)

    def sleep_until(self, due: int) -> None:
        self.now = due + 30


def test_what_the_host_overslept_is_not_the_device_s(monkeypatch):
    host, pacer = Host(monkeypatch), Pacer()
    pacer.until(1500)
    assert (host.now, pacer.now()) == (1530, 1500)
    host.now += 5  # an engine's own time counts
    assert pacer.begin() == 1505
    assert pacer.now() == host.now
    host, pacer = Host(monkeypatch), Pacer()
    pacer.until(1500)
    deadline = pacer.begin() + 100
    host.now += 400
    pacer.until(deadline)
    assert pacer.begin() == host.now == 1930


@pytest.mark.parametrize(("came", "began"), [(1400, 1500), (1510, 1510), (1600, 1600)])
def test_an_action_begins_when_its_input_is_there_and_the_last_one_is_over(monkeypatch, came, began):
    """It came before the last action ended, while the host overslept, or was waited for."""
    _, pacer = Host(monkeypatch), Pacer()
    pacer.until(1500)
    pacer.until(came)
    assert pacer.begin() == began


@pytest.mark.parametrize(("stamps", "lost"), [(True, 0), (False, 19 * 30)])
def test_actions_on_end_lose_nothing_to_the_host(monkeypatch, stamps, lost):
    """20 actions of 1 ms in a row, each of which the host oversleeps; a transport that stamps, one that does not."""
    host = Host(monkeypatch)
    monkeypatch.setattr(emulated, "perf_counter_ns", lambda: host.now)
    monkeypatch.setattr(emulated.time, "sleep", lambda _: None)
    device = opened(workload(), stamps, forward_ms=1.0)
    run, _ = device.bind(Action(Op.F, 0, 0), lambda _, x: x)
    device.prepare_step()
    began = host.now
    for _ in range(20):
        run(0, None)
    assert host.now - began == 20_000_000 + 30 + lost
    device.prepare_step()
    assert device.mark() == host.now


HOP_MS = 600


def test_a_tensor_is_there_no_earlier_than_its_latency_after_it_was_sent():
    first, second = (DelayedComms(comms, HOP_MS * 1_000_000, Pacer()) for comms in thread_comms(2))
    began = time.perf_counter()
    for tag in range(2):
        first.send_tensor(torch.full((3,), float(tag)), 1, tag)
    assert time.perf_counter() - began < 0.5 * HOP_MS / 1e3  # the sender goes on
    for tag in range(2):
        assert second.recv_tensor([3], 0, tag).tolist() == [tag] * 3
        assert time.perf_counter() - began >= HOP_MS / 1e3
    assert time.perf_counter() - began < 1.8 * HOP_MS / 1e3  # both travelled at once


@pytest.mark.parametrize(("moments", "left"), [([0.2, 0.4, 0.6], 1.4), ([0.2, 900, 900.1], 1.45), ([9, 90, 900], 1.25)])
def test_a_tick_counts_little_however_long_it_took(moments, left, monkeypatch):
    times = iter([0.0, *moments])
    monkeypatch.setattr(waiting.time, "monotonic", lambda: next(times))
    countdown = Countdown(2)
    assert [countdown.tick() for _ in moments][-1] == pytest.approx(left)


# --- how long a wait spins: long where cores are free, shortly where others want them, never without a core per rank --
MS = 1_000_000


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Look after `passed` ms in which the thread had no core for `delayed` ms; the file and the clock are made up."""
    file, now, total = tmp_path / "schedstat", [1], [7]
    file.write_text("1 7 1\n")
    monkeypatch.setattr(waiting, "perf_counter_ns", lambda: now[0])
    patience = Patience(1, file)
    assert patience.spin_ns == SHORT_NS  # nothing is known yet

    def look(passed: float, delayed: float, has_waited: bool = True) -> int:
        now[0] += round(passed * MS)
        total[0] += round(delayed * MS)
        file.write_text(f"1 {total[0]} 1\n")
        patience.has_waited = has_waited
        patience.look()
        return patience.spin_ns

    return look


def test_a_core_that_others_want_is_soon_given_up(look):
    assert look(100, 0.1) == LONG_NS
    assert [look(100, 20), look(100, 20)][-1] == SHORT_NS


def test_steps_without_waits_as_of_another_engine_whose_threads_delay_the_rank_do_not_count(look):
    assert {look(*step) for _ in range(50) for step in ((10, 0.1, True), (30, 15, False))} == {LONG_NS}


@pytest.mark.parametrize("step", [1, 10, 100])
def test_a_core_shared_with_another_process_is_given_up(look, step):
    spins, left = [], 4
    for _ in range(2000 // step):
        turns, left = divmod(left - step, 4) if left < step else (0, left - step)
        spins.append(look(step + 4 * -turns, 4 * -turns))
    assert set(spins[len(spins) // 2 :]) == {SHORT_NS}


def test_without_a_core_for_each_rank_no_wait_spins_and_without_the_file_shortly(tmp_path):
    assert Patience(len(os.sched_getaffinity(0)) + 1).spin_ns == 0
    patience = Patience(1, tmp_path / "none")
    patience.look()
    assert patience.spin_ns == SHORT_NS
