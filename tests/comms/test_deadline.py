"""Waiting for a moment, and what becomes of it when the host oversleeps."""

from __future__ import annotations

import threading
import time
from time import perf_counter_ns

import pytest
import torch
from emulation import opened, shortest, workload

from microp.comms import DelayedComms, Pacer, thread_comms
from microp.comms import deadline as deadline_module
from microp.device import emulated
from microp.schedule import Action, Op


def test_a_wait_is_never_short_and_seldom_long():
    late = []
    for wait_ns in (0, 50_000, 300_000, 2_000_000) * 5:
        deadline = perf_counter_ns() + wait_ns
        deadline_module.sleep_until(deadline)
        late.append(perf_counter_ns() - deadline)
    assert min(late) >= 0
    assert sorted(late)[len(late) // 4] < 2_000_000  # the rest is for a busy machine
    began = perf_counter_ns()
    deadline_module.sleep_until(began - 10**9)
    assert perf_counter_ns() - began < 500_000_000


class Host:
    """A clock that is told what the time is, and oversleeps by 30."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1000
        monkeypatch.setattr(deadline_module, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(deadline_module, "sleep_until", self.sleep_until)

    def sleep_until(self, due: int) -> None:
        self.now = due + 30


def test_what_the_host_overslept_is_not_the_device_s(monkeypatch):
    host, pacer = Host(monkeypatch), Pacer()
    pacer.until(1500)
    assert (host.now, pacer.now()) == (1530, 1500)
    host.now += 5  # an engine's own time counts
    assert pacer.begin() == 1505
    assert pacer.now() == host.now  # it has been given back, once


@pytest.mark.parametrize(
    ("came", "began"),
    [
        (1400, 1500),  # before the last action ended
        (1510, 1510),  # while the host overslept
        (1600, 1600),  # waited for
    ],
)
def test_an_action_begins_when_its_input_is_there_and_the_last_one_is_over(monkeypatch, came, began):
    _, pacer = Host(monkeypatch), Pacer()
    pacer.until(1500)
    pacer.until(came)
    assert pacer.begin() == began


def test_work_that_takes_too_long_is_given_nothing_back(monkeypatch):
    host, pacer = Host(monkeypatch), Pacer()
    pacer.until(1500)
    deadline = pacer.begin() + 100
    host.now += 400
    pacer.until(deadline)
    assert pacer.begin() == host.now == 1930


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


# --- a hop ---------------------------------------------------------------------------------------

HOP_MS = 600


def delayed():
    """Two ranks with a long way between them."""
    return (DelayedComms(comms, HOP_MS * 1_000_000, Pacer()) for comms in thread_comms(2))


def test_a_tensor_is_there_no_earlier_than_its_latency_after_it_was_sent():
    first, second = delayed()
    began = time.perf_counter()
    for tag in range(2):
        first.send_tensor(torch.full((3,), float(tag)), 1, tag)
    assert time.perf_counter() - began < 0.5 * HOP_MS / 1e3  # the sender goes on
    for tag in range(2):
        assert second.recv_tensor([3], 0, tag).tolist() == [tag] * 3
        assert time.perf_counter() - began >= HOP_MS / 1e3
    assert time.perf_counter() - began < 1.8 * HOP_MS / 1e3  # both travelled at once


def test_the_time_of_sending_counts():
    """What has been under way long enough is there at once, however late it is asked for."""
    first, second = delayed()
    first.send_tensor(torch.ones(1), 1)
    time.sleep(1.1 * HOP_MS / 1e3)
    assert shortest(lambda: second.recv_tensor([1], 0), HOP_MS, times=1) < 0.5 * HOP_MS
    sent = []

    def send() -> None:
        sent.append(time.perf_counter())
        first.send_tensor(torch.ones(1), 1)

    threading.Timer(0.03, send).start()
    second.recv_tensor([1], 0)
    assert time.perf_counter() - sent[0] >= HOP_MS / 1e3
