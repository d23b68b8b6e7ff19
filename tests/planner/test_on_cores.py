"""Values are computed in forks of this process, and come in the order of their items."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from microp.planner import on_cores

ITEMS = range(8 * on_cores.FEWEST + 3)


def on(cores: int, monkeypatch, function, **others):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    return on_cores.on_cores(function, ITEMS, **others)


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
def test_the_order_is_that_of_the_items(cores, monkeypatch):
    ticks = []
    found = on(cores, monkeypatch, lambda item: (item**2, os.getpid()), tick=ticks.append)
    assert [value for value, _ in found] == [item**2 for item in ITEMS]
    assert len({pid for _, pid in found}) == min(cores, on_cores.MOST)
    assert ticks == sorted(ticks)
    assert max(ticks) < 1
    assert multiprocessing.active_children() == []


def test_few_items_start_no_process(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert set(on_cores.on_cores(lambda _: os.getpid(), range(on_cores.FEWEST))) == {os.getpid()}


@pytest.mark.parametrize("bad", [0, 1], ids=["here", "in a fork"])
def test_an_error_is_raised_and_nothing_is_left(bad, monkeypatch):
    def work(item):
        if item == bad:
            raise ValueError(f"item {item}")
        return item

    with pytest.raises(ValueError, match=f"item {bad}"):
        on(2, monkeypatch, work)
    assert multiprocessing.active_children() == []
