"""What is wrong with a group's values, and what follows from good ones, without a configuration around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from microp.settings import (
    NEVER,
    BucketSettings,
    Checkpointing,
    CommsSettings,
    DeviceSettings,
    EmulatedSettings,
    GptSettings,
    LaunchSettings,
    MlpSettings,
    SyncSettings,
    TextSettings,
    TrackingSettings,
    size_text,
)

EMULATED = EmulatedSettings("emulated", 1, 5.0, 10.0, None, None, 0.0, None, [])


@pytest.mark.parametrize(
    ("found", "key"),
    [
        (MlpSettings("mlp", 0, 64, "float32").problems(), "model.layers=0"),
        (MlpSettings("mlp", 4, 12, "float32").problems(), "model.dim=12"),
        (MlpSettings("mlp", 4, 64, "float16").problems(), "model.dtype=float16"),
        (GptSettings("gpt", 4, 64, "float32", 5, 8, 0.0).problems(), "model.heads=5"),
        (GptSettings("gpt", 4, 64, "float32", 4, 0, 0.0).problems(), "model.context=0"),
        (GptSettings("gpt", 4, 64, "float32", 4, 8, 1.0).problems(), "model.dropout=1.0"),
        (Checkpointing("segments", 0, False).problems(), "checkpointing.segments=0"),
        (DeviceSettings("cpu", 0).problems(), "device.threads=0"),
        (EmulatedSettings("emulated", 1, -5.0, 10.0, None, None, 0.0, None, []).problems(), "device.forward_ms=-5.0"),
        (EmulatedSettings("emulated", 1, [5.0, None], 1, None, None, 0.0, None, []).problems(), "device.forward_ms="),
        (EmulatedSettings("emulated", 1, 5.0, 10.0, None, None, 0.0, None, ["column"]).problems(), "device.per="),
        (
            EmulatedSettings("emulated", 1, 0, 0.0, None, None, 0.0, None, []).problems(),
            "device.forward_ms=0 and device",
        ),
        (
            EmulatedSettings("emulated", 1, [0, 0], 0, 0, 9, 9.0, 9, []).problems(),
            "device.forward_ms=[0, 0] and device",
        ),
        (CommsSettings("gloo", 0).problems(DeviceSettings("cpu", 1)), "comms.timeout_s=0"),
        (CommsSettings("nccl", 60).problems(DeviceSettings("cpu", 1)), "comms=nccl"),
        (LaunchSettings("elastic", 0).problems(2), "launch.shutdown_s=0"),
        (LaunchSettings("torchrun", 30).problems(2), "launch=torchrun"),
        (SyncSettings("flat", "tree").problems("1f1b", False, "gloo"), "sync.all_reduce=tree"),
        (BucketSettings("ddp", "auto", 0, 1).problems("1f1b", False, "gloo"), "sync.bucket_mb=0"),
        (BucketSettings("torch_ddp", "auto", 25, 1).problems("zb_h1", True, "gloo"), "sync=torch_ddp"),
        (BucketSettings("torch_ddp", "auto", 25, 1).problems("1f1b", False, "threads"), "sync=torch_ddp"),
        (TextSettings("text", "/no/such/file").problems(8, 256), "data.path=/no/such/file"),
        (TrackingSettings("sometimes", "microp", None, None, [], False, False).problems(), "tracking.mode=sometimes"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_wrong_value_is_one_line_with_its_key(found, key):
    [problem] = found
    assert problem.startswith(key)
    assert "\n" not in problem


def test_good_values_have_no_problems():
    assert MlpSettings("mlp", 4, 64, "float32").problems() == []
    assert GptSettings("gpt", 4, 64, "float64", 4, 8, 0.1).problems() == []
    assert EMULATED.problems() == NEVER.problems() == TextSettings("text", None).problems(64, 256) == []


def test_shapes_follow_from_the_settings():
    assert MlpSettings("mlp", 4, 64, "float32").row_bytes == 8
    assert MlpSettings("mlp", 4, 64, "float32").boundary(3, 1) == (3, 64)
    assert GptSettings("gpt", 4, 64, "float32", 4, 16, 0.0).boundary(3, 1) == (3, 16, 64)


def test_the_last_microbatch_may_be_spared():
    policy = Checkpointing("except_last", 1, True)
    assert [policy.segments_of(microbatch, 3) for microbatch in range(3)] == [1, 1, 0]
    assert policy.spared(3) == (2,)
    assert NEVER.spared(3) == ()


def test_only_an_emulated_device_is_emulated():
    assert EMULATED.is_emulated
    assert not DeviceSettings("cpu", 1).is_emulated


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
