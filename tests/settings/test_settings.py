"""What is wrong with a group's values, and what follows from good ones, without a configuration around them."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from microp.settings import (
    ADAM,
    NEVER,
    Checkpointing,
    EmulatedSettings,
    GptSettings,
    MlpSettings,
    SgdSettings,
    TrackingSettings,
    not_writable,
    quoted,
)
from microp.system import out_of_reach, redact_values, redact_words, size_text

EMULATED = EmulatedSettings("emulated", 1, 5.0, 10.0, None, None, 0.0, None, [])


def test_shapes_follow_from_the_settings():
    assert MlpSettings("mlp", 4, 64, "float32").row_bytes == 8
    assert MlpSettings("mlp", 4, 64, "float32").boundary(3, 1) == (3, 64)
    assert GptSettings("gpt", 4, 64, "float32", 4, 16, 0.0).boundary(3, 1) == (3, 16, 64)


def test_the_last_microbatch_may_be_spared():
    policy = Checkpointing("except_last", 1, True)
    assert [policy.segments_of(microbatch, 3) for microbatch in range(3)] == [1, 1, 0]
    assert policy.spared(3) == (2,)
    assert NEVER.spared(3) == ()


# --- the environment of W&B ----------------------------------------------------------------------

ASKED_NOTHING = TrackingSettings(None, None, None, None, [], None, False)


@pytest.fixture
def wandb_environment(monkeypatch):
    """Sets W&B's variables, and only these."""

    def set_only(**values: str) -> None:
        for name in ("MODE", "PROJECT", "ENTITY", "DIR", "API_KEY"):
            monkeypatch.delenv(f"WANDB_{name}", raising=False)
        for name, value in values.items():
            monkeypatch.setenv(f"WANDB_{name}", value)

    return set_only


def test_without_keys_and_variables_tracking_is_offline(wandb_environment):
    wandb_environment()
    found = ASKED_NOTHING.resolved()
    assert (found.mode, found.project, found.entity, found.dir) == ("offline", "microp", None, None)
    assert found.follow is False
    assert found.folder(Path("outputs")) == Path("outputs")


def test_the_variables_count_for_keys_that_were_not_typed(wandb_environment):
    wandb_environment(MODE="disabled", PROJECT="theirs", ENTITY="team", DIR="elsewhere")
    found = ASKED_NOTHING.resolved()
    assert (found.mode, found.project, found.entity, found.dir) == ("disabled", "theirs", "team", "elsewhere")
    assert found.folder(Path("outputs")) == Path("elsewhere")
    typed = TrackingSettings("offline", "mine", "me", "here", [], None, False).resolved()
    assert (typed.mode, typed.project, typed.entity, typed.dir) == ("offline", "mine", "me", "here")


@pytest.mark.parametrize(("word", "mode"), [("dryrun", "offline"), ("run", "online"), ("online", "online")])
def test_w_and_b_s_older_words_are_understood(wandb_environment, word, mode):
    wandb_environment(MODE=word, API_KEY="0123")
    found = ASKED_NOTHING.resolved()
    assert (found.mode, found.follow, found.problems()) == (mode, mode == "online", [])


def test_a_wrong_word_in_the_environment_is_one_problem(wandb_environment):
    wandb_environment(MODE="sometimes")
    [problem] = ASKED_NOTHING.resolved().problems()
    assert problem.startswith("tracking.mode=sometimes is not one of offline, online, disabled")
    assert "WANDB_MODE" in problem


def test_system_metrics_need_a_run_that_is_followed(wandb_environment):
    wandb_environment()
    [problem] = TrackingSettings("offline", None, None, None, [], None, True).resolved().problems()
    assert problem.startswith("tracking.system_metrics=true")
    assert TrackingSettings("offline", None, None, None, [], True, True).resolved().problems() == []


def test_the_settings_of_an_older_run_are_read():
    old = TrackingSettings.recorded({"mode": "offline", "project": "microp", "entity": None, "tags": []})
    assert (old.dir, old.follow, old.system_metrics) == (None, None, False)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (100_000, "97.7 KiB"),
        (2**20 - 1, "1024 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (3 * 2**40, "3072 GiB"),
    ],
)
def test_a_size_has_three_digits_and_its_unit(nbytes, text):
    assert size_text(nbytes) == text


# --- the learning rate over the steps, and what an optimizer keeps --------------------------------


SGD = SgdSettings("sgd", 0.0, "constant", 0, 0.9)


def test_the_learning_rate_over_the_steps():
    def shares(**changes):
        return [round(replace(ADAM, **changes).share(step, 10), 4) for step in (0, 1, 2, 4, 5, 9)]

    assert shares() == [1, 1, 1, 1, 1, 1]
    assert shares(warmup_steps=3) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert shares(decay="linear") == [1, 0.9, 0.8, 0.6, 0.5, 0.1]
    assert shares(decay="cosine", warmup_steps=4) == [0.2, 0.4, 0.6, 1, 0.933, 0.067]


def test_it_does_not_rise_again_after_the_last_step():
    assert replace(ADAM, decay="cosine").share(15, 10) == pytest.approx(0)


def test_what_is_kept_for_each_weight():
    assert (ADAM.states, SGD.states, replace(SGD, momentum=0.0).states) == (2, 1, 0)
    assert (ADAM.kind, SGD.kind, replace(SGD, momentum=0.0).kind) == ("adam", "sgd with momentum", "sgd")


# --- what a secret is, and what is written in its place -------------------------------------------


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("schedule.api_key=abc", "schedule.api_key=REDACTED"),
        ("++schedule.Token=abc,def", "++schedule.Token=REDACTED"),
        ("hydra.job.env_set.WANDB_API_KEY=abc", "hydra.job.env_set.WANDB_API_KEY=REDACTED"),
        ("hydra.job.env_set={WANDB_API_KEY:abc,B:2}", "hydra.job.env_set={WANDB_API_KEY:REDACTED,B:2}"),
        ("+data={password: 'a, b', path: c}", "+data={password: REDACTED, path: c}"),
        ("schedule.secret=", "schedule.secret=REDACTED"),
        ("chunks=4,8", "chunks=4,8"),
        ("data.path=/home/me/keys/token=1.txt", "data.path=/home/me/keys/token=REDACTED"),
        ("~schedule.token", "~schedule.token"),
        ("/home/me/keys/microp", "/home/me/keys/microp"),
    ],
)
def test_a_word_of_a_command(word, written):
    assert redact_words(["microp", word, "-m"]) == ["microp", written, "-m"]


def test_the_values_of_a_configuration():
    config = {"schedule": {"api_key": "abc", "password": None, "group": 2}, "tokens": ["a"], "model.key": 1}
    assert redact_values(config) == {
        "schedule": {"api_key": "REDACTED", "password": None, "group": 2},
        "tokens": "REDACTED",
        "model.key": "REDACTED",
    }


# --- W&B's server, names and folders --------------------------------------------------------------


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
