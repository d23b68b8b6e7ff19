"""Two processes that are asked for the same points: each point is run once, and both show its result."""

from __future__ import annotations

import csv
import os
import shutil
from importlib.util import find_spec

import pytest
from user import SMALL, begin, microp, ran, until

from microp.config import job_of
from microp.records import hold

WORDS = [*SMALL, "tracking=disabled", "comms=threads"]


def test_two_sweeps_at_once_run_each_point_once_and_have_a_folder_each(tmp_path):
    both = [begin("-m", "chunks=2,3", *WORDS, folder=tmp_path) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    attempts = sorted((tmp_path / "outputs" / "runs").glob("*/attempt-*"))
    assert [path.name for path in attempts] == ["attempt-1"] * 2
    tables = [list(csv.DictReader(path.open())) for path in (tmp_path / "outputs" / "sweeps").glob("*/table.csv")]
    assert len(tables) == 2
    for table in tables:
        assert [(row["chunks"], row["status"]) for row in table] == [("2", "finished"), ("3", "finished")]


def test_a_single_run_is_told_who_runs_it(tmp_path):
    run = tmp_path / "outputs" / "runs" / job_of("chunks=2", *WORDS).run_id
    with hold(run):
        done = microp("chunks=2", *WORDS, folder=tmp_path)
    assert done.returncode == 1
    [line] = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    assert line.startswith(f"error: {run.name} is being run by process {os.getpid()} on ")
    assert line.endswith(f"wait until it has ended, or stop it (it holds outputs/runs/{run.name}/lock)")
    assert list(run.iterdir()) == []  # nothing was started


def test_a_sweep_runs_a_point_itself_if_the_run_that_it_waits_for_is_removed(tmp_path):
    run = tmp_path / "outputs" / "runs" / job_of("chunks=2", *WORDS).run_id
    with hold(run):
        sweep = begin("-m", "chunks=2,3", *WORDS, folder=tmp_path)
        until(lambda: "this sweep waits" in sweep.said())
        shutil.rmtree(run)
        out, errors = sweep.communicate(timeout=200)
    assert sweep.returncode == 0, errors
    assert out.startswith("2 finished")


@pytest.mark.skipif(
    find_spec("joblib") is None, reason="hydra-joblib-launcher is not installed: pip install 'microp[joblib]'"
)
def test_ranks_start_from_a_worker_of_joblib(tmp_path):
    words = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "chunks=2,3", "parallel=true"]
    done = ran(*words, *SMALL, "tracking=disabled", folder=tmp_path)
    assert "2 finished" in done.stdout
