"""What is wrong with a group's values, and what follows from good ones, without a configuration around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from microp.settings import (
    NEVER,
    Checkpointing,
    EmulatedSettings,
    GptSettings,
    MlpSettings,
    TrackingSettings,
    size_text,
)

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
