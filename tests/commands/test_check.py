"""The safety checks can fail, and say so with exit code 1. (That they pass: test_run.)"""

from __future__ import annotations

import pytest

from microp import check as command
from microp.app import self_checks
from microp.worker import monolith


def test_a_failed_check_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(self_checks, "CHECKS", {"good": lambda _: (True, "1"), "bad": lambda _: (False, "0.5")})
    assert command.main([]) == 1
    out = capsys.readouterr().out
    assert "pass  good" in out
    assert "FAIL  bad" in out
    assert "0.5" in out


def test_a_wrong_gradient_fails(monkeypatch, tmp_path):
    """One gradient of the monolith is changed by its smallest amount: the check sees it."""
    steps = monolith.steps

    def wrong(plan, count):
        for step in steps(plan, count):
            step.gradients[0][0].view(-1)[0] += 1e-6
            yield step

    monkeypatch.setattr(monolith, "steps", wrong)
    passed, figure = self_checks.check_gradients(tmp_path)
    assert not passed
    assert "largest difference" in figure


@pytest.mark.parametrize("peaks", [(1.0, 2.0), (1.0, 1.0)])
def test_memory_that_does_not_fall_fails(monkeypatch, tmp_path, peaks):
    rows = iter([[{"peak_memory_mib": peak}] for peak in (peaks[0], peaks[0], peaks[1], peaks[1])])
    monkeypatch.setattr(self_checks, "launch_ranks", lambda *_: {})
    monkeypatch.setattr(self_checks, "read_rows", lambda *_: next(rows))
    passed, _ = self_checks.check_memory(tmp_path)
    assert not passed
