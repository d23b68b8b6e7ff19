"""Figures are made from what runs left on disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from costs_helper import equal
from user import environment_of

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


def test_a_reader_that_has_seen_enough_ends_it_silently(outputs, tmp_path):
    """As `python -m analysis.timeline outputs/runs | head -1` does."""
    there, here = os.pipe()
    os.close(there)
    done = subprocess.run(
        [sys.executable, "-m", "analysis.timeline", str(outputs / "runs"), "--report", str(tmp_path)],
        env=environment_of(tmp_path, {}),
        stdout=here,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(here)
    assert (done.returncode, done.stderr) == (0, "")
