"""W&B's server, names and folders are checked before a run, and not by W&B after it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from microp.settings import TrackingSettings, not_writable, out_of_reach, quoted

ONLINE = TrackingSettings("online", "microp", None, None, [], True, False)


def test_a_server_that_takes_no_connection_is_named_and_the_run_is_mirrored_offline(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", address)
        assert out_of_reach() is None
        assert ONLINE.reachable() == ONLINE
    monkeypatch.setenv("WANDB_BASE_URL", f"{address}/")
    assert out_of_reach() == f"W&B's server {address}/ cannot be reached (Connection refused)"
    assert (ONLINE.reachable().mode, ONLINE.mode) == ("offline", "online")


def test_a_proxy_is_what_must_be_reached(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("WANDB_BASE_URL", "https://nowhere.invalid")
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{listening.getsockname()[1]}")
        assert out_of_reach() is None


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a#b", "a?b", "a%b", "a:b", "a" * 129, ""])
def test_a_project_s_name_is_checked_before_the_run(name):
    [problem] = TrackingSettings("offline", name, None, None, [], False, False).resolved().problems()
    assert problem.startswith(f"tracking.project={quoted(name)} ")
    assert TrackingSettings("disabled", name, None, None, [], False, False).problems() == []


def test_a_folder_is_checked_without_leaving_anything(tmp_path):
    assert not_writable(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert not_writable(tmp_path / "file" / "wandb") == "Not a directory"
    elsewhere = TrackingSettings("offline", "microp", None, str(tmp_path / "file"), [], False, False)
    assert "cannot be written to" in str(elsewhere.folder_problem(Path("outputs")))
