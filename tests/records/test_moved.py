"""A folder of runs can be moved to another place, and everything that reads runs still reads it."""

from __future__ import annotations

import shutil

import microp
from analysis import __main__ as report
from analysis import timeline
from microp import runs, tracking
from microp.points import planned
from microp.results import Store

WORDS = ["schedule=1f1b", "chunks=3", "comms=threads", "tracking=disabled", "steps=2", "warmup_steps=1"]
TINY = ["model.layers=2", "model.dim=8", "batch_size=6"]


def test_a_folder_that_was_moved_is_read_mirrored_drawn_and_tidied_up(tmp_path, monkeypatch, capsys):
    """It was recorded under an absolute path, which is gone, and has another name now."""
    before, moved = tmp_path / "before" / "outputs", tmp_path / "after" / "copied"
    microp.measure(*WORDS, *TINY, f"output_dir={before}")
    moved.parent.mkdir()
    shutil.move(before, moved)
    monkeypatch.chdir(moved.parent)
    [run] = (moved / "runs").iterdir()

    assert runs.main(["copied"]) == 0
    assert run.name in capsys.readouterr().out
    assert planned.finished(run) == run / "attempt-1"
    assert Store(moved).unreadable == []

    assert timeline.main(["copied", "--report", "copied/report"]) == 0
    assert "1f1b-m3-k2-" in capsys.readouterr().out
    assert list((moved / "report").glob("timeline-1f1b-m3-k2-*.svg"))

    assert tracking.main(["copied", "--mode", "offline"]) == 0
    assert "mirrored rank0, rank1, summary" in capsys.readouterr().out
    assert len(list((moved / "wandb").glob("offline-run-*"))) == 3

    assert report.main(["copied"]) == 0
    assert "1f1b, M=3, K=2" in (moved / "report" / "report.html").read_text()

    assert runs.main(["copied", "schedule=1f1b", "--delete", "--yes"]) == 0
    assert not list((moved / "runs").iterdir())
    assert not list((moved / "wandb").glob("*run-*"))
