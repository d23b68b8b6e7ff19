"""Sizes in words, and whether W&B's server can be reached."""

import socket

from microp.settings import TrackingSettings
from microp.system import out_of_reach, size_text


def test_a_size_has_three_digits_and_its_unit():
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 100_000: "97.7 KiB", 2**20 - 1: "1024 KiB", 3 * 2**40: "3072 GiB"}
    assert {nbytes: size_text(nbytes) for nbytes in sizes} == sizes
    assert size_text(1.5 * 2**20) == "1.5 MiB"


def test_a_server_that_takes_no_connection_is_named_and_the_run_is_mirrored_offline(monkeypatch):
    online = TrackingSettings("online", "microp", None, None, [], True, False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", address)
        assert out_of_reach() is None
        assert online.reachable() == online
    monkeypatch.setenv("WANDB_BASE_URL", f"{address}/")
    assert out_of_reach() == f"W&B's server {address}/ cannot be reached (Connection refused)"
    assert online.reachable().mode == "offline"
    with socket.create_server(("127.0.0.1", 0)) as listening:  # a proxy is what must be reached
        monkeypatch.setenv("WANDB_BASE_URL", "https://nowhere.invalid")
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{listening.getsockname()[1]}")
        assert out_of_reach() is None
