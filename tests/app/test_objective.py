"""A run returns its objective, so that a sweeper such as Optuna's can choose the next point from those before it."""

from __future__ import annotations

import math
import os

import pytest
from user import ROOT, SMALL, microp, read

from microp.app import RunError, points
from microp.store import write_json

CHOOSER = '''
"""A sweeper that chooses each point after the one before it; Hydra takes sweepers only from `hydra_plugins`."""
import json
from pathlib import Path
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

class Chooser(Sweeper):
    def __init__(self, **_):
        pass

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        found, chunks = {}, 2
        for number in range(3):
            [done] = self.launcher.launch([[f"chunks={chunks}", *arguments]], initial_job_idx=number)
            try:
                found[chunks] = done.return_value
                chunks += 1 if done.return_value > 0 else 99
            except Exception as error:
                found[chunks] = repr(error)
            if number == 1:
                chunks = 400
        Path("found.json").write_text(json.dumps(found))
'''


def test_a_sweeper_that_chooses_its_points_gets_their_step_times(tmp_path):
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "chooser.py").write_text(CHOOSER)
    words = ["-m", "hydra.sweeper._target_=hydra_plugins.chooser.Chooser", "tracking=disabled", "comms=threads", *SMALL]
    done = microp(*words, folder=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert done.returncode == 0, done.stderr
    summaries = [read(path) for path in (tmp_path / "outputs" / "runs").glob("*/*/summary.json")]
    medians = {str(summary["chunks"]): summary["step_ms"]["median"] for summary in summaries}
    found = read(tmp_path / "found.json")
    assert "chunks=400 is more than batch_size=8" in found.pop("400")  # it fails, and the others count
    assert found == medians
    assert sorted(found) == ["2", "3"]
    [folder] = (tmp_path / "outputs" / "sweeps").iterdir()
    points = read(folder / "plan.json")["points"]
    assert [point["overrides"][0] for point in points] == ["chunks=2", "chunks=3"]
    table = (folder / "table.csv").read_text().splitlines()
    assert len(table) == 3
    assert "planned" not in "".join(table)
    assert "finished" in done.stdout


@pytest.fixture
def attempt(tmp_path):
    """Makes an attempt that ended in some way."""

    def make(status: str, step_ms: float):
        write_json(tmp_path / "status.json", {"status": status, "started": 1.0, "message": "rank 1 has left"})
        summary = {
            "run_id": "a",
            "question_id": "q",
            "schedule": "gpipe",
            "chunks": 2,
            "ranks": 2,
            "replicas": 1,
            "bubble": {},
        }
        write_json(
            tmp_path / "summary.json",
            {"schema_version": 2, **summary, "status": status, "step_ms": {"median": step_ms}},
        )
        return tmp_path

    return make


def test_the_objective_is_the_median_step_time(attempt):
    assert points._objective(attempt("finished", 12.5)) == 12.5


def test_a_failed_point_has_none_and_fails_the_trial_of_a_sweeper_that_chooses(attempt, monkeypatch):
    folder = attempt("failed", 12.5)
    assert math.isnan(points._objective(folder))  # Hydra's own sweeper runs the other points
    monkeypatch.setattr(points, "chooses_points", lambda: True)
    with pytest.raises(RunError, match="rank 1 has left"):
        points._objective(folder)


def test_a_rank_on_another_host_has_no_objective(tmp_path):
    assert math.isnan(points._objective(tmp_path))
