"""The rest of a time-out, which counts only time in which this process ran."""

from __future__ import annotations

import time
from threading import Condition

import pytest

from microp.comms import Countdown
from microp.comms import countdown as countdown_module


@pytest.mark.parametrize(("moments", "left"), [([0.2, 0.4, 0.6], 1.4), ([0.2, 900, 900.1], 1.45), ([9, 90, 900], 1.25)])
def test_a_tick_counts_little_however_long_it_took(moments, left, monkeypatch):
    times = iter([0.0, *moments])
    monkeypatch.setattr(countdown_module.time, "monotonic", lambda: next(times))
    countdown = Countdown(2)
    assert [countdown.tick() for _ in moments][-1] == pytest.approx(left)
    assert not countdown.is_over


def test_a_wait_ends_when_time_is_up():
    changed, began = Condition(), time.monotonic()
    with changed:
        assert Countdown(0.4).wait_for(changed, lambda: True)
        assert not Countdown(0.4).wait_for(changed, lambda: False)
    assert 0.4 <= time.monotonic() - began < 20
