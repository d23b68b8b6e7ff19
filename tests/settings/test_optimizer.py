"""The learning rate over the steps, and what an optimizer keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from microp.settings import ADAM, SgdSettings

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
