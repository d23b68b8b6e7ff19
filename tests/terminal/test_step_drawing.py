"""The step that a single run ends with: drawn if it is whole and small."""

from __future__ import annotations

from pathlib import Path

import pytest

from microp.schedule.builders import gpipe
from microp.simulator import for_stages, simulate
from microp.store import TracedStep
from microp.terminal import step_drawing

SUMMARY = {"status": "finished", "ranks": 2, "replicas": 1, "actions": 2 * 2 * 2 * 10, "steps": 10}


@pytest.fixture(autouse=True)
def step(monkeypatch):
    """A step in place of the run's files."""
    schedule = gpipe(2, 2)
    spans = simulate(schedule, for_stages(2, forward=4_000_000, backward=6_000_000))
    found = TracedStep(schedule, {"replayed": spans, "measured": spans}, {})
    monkeypatch.setattr(step_drawing, "read_traced_step", lambda folder, summary: found)
    monkeypatch.setenv("COLUMNS", "39")


def shown(capsys, **changes) -> list[str]:
    step_drawing.show(Path("nowhere"), {**SUMMARY, **changes})
    return capsys.readouterr().out.splitlines()


def test_the_measured_step_is_drawn_below_a_header_of_both(capsys):
    lines = shown(capsys)
    assert lines[:6] == [
        "",
        "replayed 30 ms, bubble 0.333",
        "measured 30 ms (+0.0 %), bubble 0.333",
        "",
        "rank 0 |F0--F1--··········B0====B1====|",
        "rank 1 |····F0--F1--B0====B1====······|",
    ]
    assert sum("|" in line for line in lines) == 2


def test_of_several_replicas_the_first_is_drawn_and_the_header_says_so(capsys):
    assert "replica 0 of 2" in " ".join(shown(capsys, replicas=2)[:4])
    assert "replica" not in "".join(shown(capsys))


def test_a_prediction_is_shown_if_the_summary_has_one(capsys):
    lines = shown(capsys, predicted={"step_ms": 31.0, "bubble": 0.25, "peak_memory_mib": [1.0, 1.0]})
    assert "predicted 31 ms with the optimizer," in lines


@pytest.mark.parametrize(
    "changes",
    [{"status": "failed"}, {"status": "interrupted"}, {"ranks": 9}, {"actions": 10 * 4001}],
    ids=["failed", "interrupted", "many ranks", "many actions"],
)
def test_a_step_that_is_not_whole_or_large_is_not_drawn(changes, capsys):
    assert shown(capsys, **changes) == []
