"""A launch on one host cannot be reached from another one, and its ranks unpickle nothing that comes from a rank."""

from __future__ import annotations

import os
import socket
import threading
from functools import partial

import pytest
import rank_faults
from conftest import small_job
from sockets import is_loopback, listening

from microp.schedule.builders import gpipe
from microp.settings import BucketSettings, EngineSettings
from microp.worker import launch, launch_ranks

LAUNCHES = {
    "gloo": partial(small_job, engine=EngineSettings("compare", False)),
    "tcp": small_job,
    "shm": partial(small_job, schedule=gpipe(1, 2), replicas=2, sync=BucketSettings("compare", "library", 25.0, 1.0)),
}


def test_addresses_are_read():
    with socket.create_server(("0.0.0.0", 0)), socket.create_server(("::1", 0), family=socket.AF_INET6):
        assert {"0.0.0.0", "::1"} <= set(listening(os.getpid()))
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "0.0.0.0", "::")] == [True, True, False, False]


@pytest.mark.parametrize("backend", LAUNCHES)
def test_a_launch_listens_on_loopback_only_and_unpickles_nothing(backend, tmp_path):
    job = LAUNCHES[backend](backend=backend, batch_size=8, steps=2)
    launchers, over = [], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            launchers.extend(listening(os.getpid()))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        found = launch_ranks(job, tmp_path, 3, rank_faults.listen)
    finally:
        over.set()
        watching.join()
    assert all(found.values()), "gloo listens in every rank"
    addresses = [each for addresses in found.values() for each in addresses]
    assert launchers, "the store listens in the launcher"
    assert [each for each in (*launchers, *addresses) if not is_loopback(each)] == []


def test_a_port_can_be_used_again(monkeypatch):
    """The system gives the ports of closed stores out again."""
    opened = launch._open_store()
    port = opened.port
    del opened
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda _: create(("127.0.0.1", port)))
    again = launch._open_store()
    assert again.port == port
