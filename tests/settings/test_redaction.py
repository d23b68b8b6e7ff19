"""What a secret is, and what is written in its place."""

from __future__ import annotations

import pytest

from microp.settings import redact_values, redact_words


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
