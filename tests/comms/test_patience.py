"""How long a wait spins: long where cores are free, shortly where others want them, never without a core per rank."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from microp.comms import patience
from microp.comms.patience import LONG_NS, SHORT_NS, Patience

MS = 1_000_000


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Look after `passed` ms in which the thread had no core for `delayed` ms; the file and the clock are made up."""
    file, now, total = tmp_path / "schedstat", [1], [7]
    file.write_text("1 7 1\n")
    monkeypatch.setattr(patience, "perf_counter_ns", lambda: now[0])
    made = Patience(1, file)
    assert made.spin_ns == SHORT_NS  # nothing is known yet

    def look(passed: float, delayed: float, has_waited: bool = True) -> int:
        now[0] += round(passed * MS)
        total[0] += round(delayed * MS)
        file.write_text(f"1 {total[0]} 1\n")
        made.has_waited = has_waited
        made.look()
        return made.spin_ns

    return look


def test_a_core_that_others_want_is_soon_given_up(look):
    assert look(100, 0.1) == LONG_NS
    assert [look(100, 20), look(100, 20)][-1] == SHORT_NS


def test_a_core_that_is_taken_now_and_then_is_kept(look):
    """10 ms of 330 ms, as by the system: it delays one step of 33."""
    found = {look(10 + delay, delay) for _ in range(20) for delay in [10] + 32 * [0.05]}
    assert found == {LONG_NS}


@pytest.mark.parametrize("step", [1, 10, 100])
def test_a_core_shared_with_another_process_is_given_up(look, step):
    """The other has turns of 4 ms as often as the rank, however short its steps are."""
    found, left = [], 4
    for _ in range(2000 // step):
        turns, left = divmod(left - step, 4) if left < step else (0, left - step)
        found.append(look(step + 4 * -turns, 4 * -turns))
    assert set(found[len(found) // 2 :]) == {SHORT_NS}


def test_steps_without_waits_do_not_count(look):
    """Those of another engine, whose threads delay the rank."""
    assert {look(*step) for _ in range(50) for step in ((10, 0.1, True), (30, 15, False))} == {LONG_NS}


def test_after_a_crowd_has_gone_waits_spin_again(look):
    assert look(500, 400) == SHORT_NS
    found = [look(100, 0) for _ in range(20)]
    assert found[0] == SHORT_NS
    assert found[-1] == LONG_NS
    assert sum(before != after for before, after in pairwise(found)) == 1  # it does not go to and fro


def test_without_a_core_for_each_rank_no_wait_spins():
    assert Patience(len(os.sched_getaffinity(0)) + 1).spin_ns == 0


def test_a_system_that_counts_no_delays_spins_shortly(tmp_path):
    made = Patience(1, tmp_path / "none")
    made.look()
    assert made.spin_ns == SHORT_NS


def test_this_system_counts_delays():
    made = Patience(1)
    made.look()
    assert made.spin_ns in (SHORT_NS, LONG_NS)
