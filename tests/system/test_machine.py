"""Sizes in words, what a secret is, and whether W&B's server can be reached."""

import socket

from microp.settings import TrackingSettings
from microp.system import out_of_reach, redact_values, redact_words, size_text


def test_a_size_has_three_digits_and_its_unit():
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 100_000: "97.7 KiB", 2**20 - 1: "1024 KiB", 3 * 2**40: "3072 GiB"}
    assert {nbytes: size_text(nbytes) for nbytes in sizes} == sizes
    assert size_text(1.5 * 2**20) == "1.5 MiB"


WORDS = {
    "schedule.api_key=abc": "schedule.api_key=REDACTED",
    "++schedule.Token=abc,def": "++schedule.Token=REDACTED",
    "hydra.job.env_set={WANDB_API_KEY:abc,B:2}": "hydra.job.env_set={WANDB_API_KEY:REDACTED,B:2}",
    "+data={password: 'a, b', path: c}": "+data={password: REDACTED, path: c}",
    "schedule.secret=": "schedule.secret=REDACTED",
    "data.path=/home/me/keys/token=1.txt": "data.path=/home/me/keys/token=REDACTED",
}


def test_the_words_of_a_command():
    assert redact_words([*WORDS]) == [*WORDS.values()]
    others = ["microp", "-m", "chunks=4,8", "model.key_dim=8", "~schedule.token", "/home/me/keys/microp"]
    assert redact_words(others) == others


def test_the_values_of_a_configuration():
    config = {"schedule": {"api_key": "abc", "password": None}, "token": ["a"], "model.key": 1, "max_tokens": 6}
    hidden = {"api_key": "REDACTED", "password": None}
    assert redact_values(config) == {"schedule": hidden, "token": "REDACTED", "model.key": "REDACTED", "max_tokens": 6}


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
