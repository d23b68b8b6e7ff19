"""A point of a sweep runs what was planned, in whatever process, and returns its objective to sweepers."""

import csv
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from user import ROOT, SMALL, alone, microp, ran, read

from microp import worker
from microp.config.config import compose_config, from_plain, plain, read_config
from microp.config.job_factory import make_job
from microp.points.planned import Planned, planned
from microp.worker import RankError

MEDDLER = '''
"""A launcher that changes every file of the configuration once the points are planned, and forks for each point.

Hydra takes launchers only from `hydra_plugins`; joblib's and submitit's run points in other processes too.
"""
import os
from pathlib import Path
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
class Meddler(Launcher):
    def setup(self, **setup):
        launchers = Plugins.instance().discover(Launcher)
        self.basic = next(each for each in launchers if each.__name__ == "BasicLauncher")()
        self.basic.setup(**setup)
    def launch(self, job_overrides, initial_job_idx):
        Path("my.csv").write_text(Path("other.csv").read_text())
        Path("mine.py").write_text("a syntax error")
        Path("own.yaml").write_text("defaults: [config, _self_]\\nbatch_size: 4\\n")
        Path("schedule/mine.yaml").write_text("name: mine\\nbuilder: microp.schedule.builders.one_f_one_b\\n")
        for number, overrides in enumerate(job_overrides):
            if (child := os.fork()) == 0:
                [done] = self.basic.launch([overrides], initial_job_idx + number)
                os._exit(0 if done.status.name == "COMPLETED" else 1)
            assert os.waitpid(child, 0)[1] == 0
        return []
'''
QUIET = ["tracking=disabled", "comms=threads", *SMALL]
REFUSED = (
    "error: this launcher runs points at the same time, and the times of device=cpu would be those of shared cores: "
    "leave hydra/launcher out, or use parallel=true if you need no times"
)


def test_files_that_change_during_a_sweep_do_not_change_its_points(tmp_path):
    """The points run in processes of their own, with files of which Hydra would compose another point."""
    for name, text in {
        "hydra_plugins/meddler.py": MEDDLER,
        "my.csv": "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n",
        "other.csv": "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n",
        "mine.py": "from microp.schedule.builders import gpipe\ndef f(ranks, chunks): return gpipe(ranks, chunks)",
        "schedule/mine.yaml": "name: mine\nbuilder: mine.f\n",
        "own.yaml": "defaults: [config, _self_]\nseed: 11\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    words = ["-cd", ".", "-cn", "own", "-m", "hydra.launcher._target_=hydra_plugins.meddler.Meddler", *QUIET]
    words += ["schedule=file,mine", "schedule.path=my.csv", "chunks=2", "skip=false,true"]
    refused = microp(*words, folder=tmp_path)  # a launcher that is not Hydra's may run points at the same time
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (2, REFUSED)
    assert not (tmp_path / "outputs").exists()
    done = alone(*words, "parallel=true", folder=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "outputs" / "sweeps").iterdir()
    planned_runs = [point["run_id"] for point in read(folder / "plan.json")["points"]]
    attempts = {path.parent.name: path for path in (tmp_path / "outputs" / "runs").glob("*/attempt-*")}
    assert sorted(attempts) == sorted(planned_runs)
    assert [run.split("-")[0] for run in planned_runs] == ["file", "mine"]
    for attempt in attempts.values():
        config = yaml.safe_load((attempt / "config.yaml").read_text())
        assert (config["seed"], config["batch_size"], config["steps"]) == (11, 8, 3)
        assert read(attempt / "status.json")["status"] == "finished"
        assert read(attempt / "env.json")["parallel"]
    order = (attempts[planned_runs[0]] / "schedule.txt").read_text()
    assert order == "# microp schedule file chunks=2 ranks=2\n0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n"
    assert "2 finished" in done.stdout
    assert "disturbed: 2 of 2 runs" in done.stdout


def test_fail_fast_stops_a_sweep_at_its_first_failed_point(tmp_path, monkeypatch):
    run_threads = worker.run_threads

    def failing(job, *given):
        if job.schedule.chunks == 3:
            raise RankError("rank 1 failed")
        return run_threads(job, *given)

    monkeypatch.setattr(worker, "run_threads", failing)
    done = microp("-m", "chunks=2,3,4", "fail_fast=true", *QUIET, folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("1 finished, 1 failed, the same in all: ")
    assert "rank 1 failed" in done.stdout + done.stderr
    assert "error: the sweep stops: fail_fast=true: gpipe-m3-" in done.stderr
    [table] = (tmp_path / "outputs" / "sweeps").glob("*/table.csv")
    assert [row["status"] for row in csv.DictReader(table.open())] == ["finished", "failed", "planned"]
    assert not list((tmp_path / "outputs" / "runs").glob("*-m4-*"))


CONFIGURATIONS = [
    [],
    ["schedule=interleaved", "model=gpt", "batch_size=32", "checkpointing=segments", "partition=skewed"],
    ["device=emulated", "device.forward_ms=[1,2]", "device.per=[row]", "replicas=2", "sync=naive", "data=synthetic"],
    ["schedule=zb_h1", "replicas=2", "engine.batch_weights=true", "partition=sizes", "partition.sizes=[7,9]"],
]


@pytest.mark.parametrize("words", CONFIGURATIONS)
def test_what_a_plan_holds_gives_the_same_job(words):
    config = read_config(compose_config(*words))
    point = Planned(list(words), config, make_job(config))
    again = planned(yaml.safe_load(yaml.safe_dump(point.record())))
    assert again == point
    assert from_plain(plain(config)) == config


class Chooser(Sweeper):
    """A sweeper that chooses each point after the one before it."""

    __module__ = "hydra_plugins.chooser"  # the package from which Hydra takes sweepers

    def __init__(self, **_): ...

    def setup(self, **given):
        self.launcher = Plugins.instance().instantiate_launcher(**given)

    def sweep(self, arguments):
        found, chunks = {}, 2
        for number in range(3):
            [done] = self.launcher.launch([[f"chunks={chunks}", *arguments]], initial_job_idx=number)
            try:
                found[chunks] = done.return_value
            except Exception as error:
                found[chunks] = repr(error)
            chunks = 400 if number else 3
        Path("found.json").write_text(json.dumps(found))


def test_a_sweeper_that_chooses_its_points_gets_their_step_times(tmp_path, monkeypatch):
    Plugins.instance().register(Chooser)
    monkeypatch.setitem(sys.modules, "hydra_plugins", SimpleNamespace(chooser=SimpleNamespace(Chooser=Chooser)))
    done = ran("-m", "hydra.sweeper._target_=hydra_plugins.chooser.Chooser", *QUIET, folder=tmp_path)
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
