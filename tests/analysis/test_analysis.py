"""Figures are made from what runs left on disk."""

from __future__ import annotations

import pytest
from costs_helper import equal

from analysis import timeline
from microp.schedule.builders import one_f_one_b
from microp.simulator import replay, schedule_of, simulate


def test_the_replay_is_of_what_was_run():
    """With spans that obey the model exactly, replayed and measured are one."""
    schedule = one_f_one_b(4, 6)
    spans = simulate(schedule, equal(4, 10, 20, latency=1))
    shuffled = sorted(spans, key=lambda span: (span.microbatch, span.rank))
    found = schedule_of(shuffled, "1f1b")
    assert found == schedule
    assert sorted(replay(found, shuffled)) == sorted(spans)


def test_a_folder_without_a_trace(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        timeline.main([str(tmp_path)])
    assert stop.value.code == 2
    assert "holds no attempt with a trace" in capsys.readouterr().err
