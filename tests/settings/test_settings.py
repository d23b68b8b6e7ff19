"""What is wrong with a group's values, and what follows from good ones, without a configuration around them."""

from dataclasses import replace
from pathlib import Path

import pytest

from microp.settings import ADAM, NEVER, Checkpointing, GptSettings, MlpSettings, SgdSettings, TrackingSettings


def test_shapes_follow_from_the_settings_and_the_last_microbatch_may_be_spared():
    assert MlpSettings("mlp", 4, 64, "float32").row_bytes == 8
    assert MlpSettings("mlp", 4, 64, "float32").boundary(3, 1) == (3, 64)
    assert GptSettings("gpt", 4, 64, "float32", 4, 16, 0.0).boundary(3, 1) == (3, 16, 64)
    policy = Checkpointing("except_last", 1, True)
    assert [policy.segments_of(microbatch, 3) for microbatch in range(3)] == [1, 1, 0]
    assert (policy.spared(3), NEVER.spared(3)) == ((2,), ())


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


def test_what_was_typed_counts_before_the_variables_and_these_before_the_defaults(wandb_environment):
    def found(asked=ASKED_NOTHING):
        asked = asked.resolved()
        return asked.mode, asked.project, asked.entity, str(asked.folder(Path("outputs")))

    wandb_environment()
    assert found() == ("offline", "microp", None, "outputs")
    wandb_environment(MODE="disabled", PROJECT="theirs", ENTITY="team", DIR="elsewhere")
    assert found() == ("disabled", "theirs", "team", "elsewhere")
    assert found(TrackingSettings("offline", "mine", "me", "here", [], None, False)) == (
        "offline",
        "mine",
        "me",
        "here",
    )


def test_runs_are_followed_online_and_a_wrong_word_in_the_environment_is_one_problem(wandb_environment):
    wandb_environment(MODE="online", API_KEY="0123")
    asked = ASKED_NOTHING.resolved()
    assert (asked.mode, asked.follow, asked.problems()) == ("online", True, [])
    wandb_environment(MODE="sometimes")
    [problem] = ASKED_NOTHING.resolved().problems()
    assert problem.startswith("tracking.mode=sometimes is not one of offline, online, disabled")


SGD = SgdSettings("sgd", 0.0, "constant", 0, 0.9)


def test_the_learning_rate_over_the_steps():
    def shares(**changes):
        return [round(replace(ADAM, **changes).share(step, 10), 4) for step in (0, 1, 2, 4, 5, 9)]

    assert shares() == [1, 1, 1, 1, 1, 1]
    assert shares(warmup_steps=3) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert shares(decay="linear") == [1, 0.9, 0.8, 0.6, 0.5, 0.1]
    assert shares(decay="cosine", warmup_steps=4) == [0.2, 0.4, 0.6, 1, 0.933, 0.067]
    sgd = replace(SGD, momentum=0.0)  # what is kept for each weight
    assert [(one.states, one.kind) for one in (ADAM, SGD, sgd)] == [(2, "adam"), (1, "sgd with momentum"), (0, "sgd")]
    assert replace(ADAM, decay="cosine").share(15, 10) == pytest.approx(0)  # it does not rise again after the last step
