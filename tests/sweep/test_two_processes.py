"""Two processes that are asked for the same points: each point is run once, and both show its result."""

from __future__ import annotations

import csv
import os
import shutil
from importlib.util import find_spec

import pytest
from user import ROOT, SMALL, begin, microp, read, until

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


# --- several points of a sweep at the same time: only where no times are asked for, and then marked ---


BESIDE = '''
"""A launcher that runs all points at the same time, each in a process of its own, as joblib's does."""
import os
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

class Beside(Launcher):
    def setup(self, **setup):
        launchers = Plugins.instance().discover(Launcher)
        self.basic = next(each for each in launchers if each.__name__ == "BasicLauncher")()
        self.basic.setup(**setup)

    def launch(self, job_overrides, initial_job_idx):
        children = []
        for number, overrides in enumerate(job_overrides):
            if (child := os.fork()) == 0:
                self.basic.launch([overrides], initial_job_idx + number)
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
        return []
'''
OWN = "hydra.launcher._target_=hydra_plugins.beside.Beside"
QUIET = ["tracking=disabled", *SMALL]
REFUSED = (
    "error: this launcher runs points at the same time, and the times of device=cpu would be those of shared cores: "
    "leave hydra/launcher out, or use parallel=true if you need no times"
)


@pytest.fixture
def own(tmp_path):
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "beside.py").write_text(BESIDE)
    return tmp_path


def sweep(folder, *words):
    return microp("-m", *words, *QUIET, folder=folder, PYTHONPATH=f"{ROOT}{os.pathsep}{folder}")


def test_points_at_the_same_time_are_refused_unless_asked_for_and_then_count_as_disturbed(own):
    refused = sweep(own, OWN, "chunks=2,3", "comms=threads")
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [REFUSED]
    assert not (own / "outputs").exists()
    done = sweep(own, OWN, "chunks=2,3", "comms=threads", "parallel=true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("parallel") >= 2
    assert [read(path)["parallel"] for path in own.glob("outputs/runs/*/attempt-1/env.json")] == [True, True]
    again = sweep(own, "chunks=2", "comms=threads")  # parallel is no part of the question
    assert "1 of 1 points are finished already" in again.stderr


def test_an_emulated_device_may(own):
    emulated = ["device=emulated", "device.forward_ms=1", "device.backward_ms=1", "comms=threads"]
    done = sweep(own, OWN, "chunks=2", *emulated)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    find_spec("joblib") is None, reason="hydra-joblib-launcher is not installed: pip install 'microp[joblib]'"
)
def test_ranks_start_from_a_worker_of_joblib(own):
    done = sweep(own, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "chunks=2,3", "parallel=true")
    assert done.returncode == 0, done.stderr
    assert "2 finished" in done.stdout
