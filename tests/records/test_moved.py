"""A folder of runs can be moved to another place, and everything that reads runs still reads it."""

from __future__ import annotations

import shutil

import pytest

import microp
from analysis import __main__ as report
from analysis import timeline
from microp import runs, tracking
from microp.results import Store
from microp.sweep import planned

WORDS = ["schedule=1f1b", "chunks=3", "comms=threads", "tracking=disabled", "steps=2", "warmup_steps=1"]
TINY = ["model.layers=2", "model.dim=8", "batch_size=6"]


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A folder of runs that was recorded under an absolute path, which is gone; the folder has another name now."""
    before, after = tmp_path_factory.mktemp("before") / "outputs", tmp_path_factory.mktemp("after") / "copied"
    microp.measure(*WORDS, *TINY, f"output_dir={before}")
    shutil.move(before, after)
    assert not before.exists()
    return after


@pytest.fixture(autouse=True)
def _beside_it(moved, monkeypatch):
    monkeypatch.chdir(moved.parent)


def test_it_is_listed_and_a_sweep_takes_its_runs(moved, capsys):
    assert runs.main(["copied"]) == 0
    [run] = (moved / "runs").iterdir()
    assert run.name in capsys.readouterr().out
    assert planned.finished(run) == run / "attempt-1"
    assert Store(moved).unreadable == []


def test_its_timeline_is_drawn(moved, capsys):
    assert timeline.main(["copied", "--report", "copied/report"]) == 0
    assert "1f1b-m3-k2-" in capsys.readouterr().out
    assert list((moved / "report").glob("timeline-1f1b-m3-k2-*.svg"))


def test_it_is_mirrored_to_where_it_is_now(moved, capsys):
    assert tracking.main(["copied", "--mode", "offline"]) == 0
    assert "mirrored rank0, rank1, summary" in capsys.readouterr().out
    assert len(list((moved / "wandb").glob("offline-run-*"))) == 3


def test_its_report_is_made(moved):
    assert report.main(["copied"]) == 0
    assert "1f1b, M=3, K=2" in (moved / "report" / "report.html").read_text()


def test_and_it_can_be_tidied_up(moved):
    assert runs.main(["copied", "schedule=1f1b", "--delete", "--yes"]) == 0
    assert not list((moved / "runs").iterdir())
    assert not list((moved / "wandb").glob("*run-*"))
