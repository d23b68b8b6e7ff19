"""A point of a sweep runs what was planned, in whatever process, and returns its objective to sweepers."""

import csv
import os
from pathlib import Path

import pytest
import yaml
from user import ROOT, SMALL, alone, read

from microp.config.config import compose_config, from_plain, plain, read_config
from microp.config.job_factory import make_job
from microp.points.planned import Planned, planned

MEDDLER = '''
"""A launcher that changes every file of the configuration once the points are planned, and forks for each point.

Hydra takes launchers only from `hydra_plugins`; joblib's and submitit's run points in other processes too.
"""
import os
from pathlib import Path
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
import microp.worker
from microp.worker import RankError
def failing(run):
    def run_or_fail(job, *arguments):
        if job.schedule.chunks == 3:
            raise RankError("rank 1 failed")
        return run(job, *arguments)
    return run_or_fail
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
        if os.environ.get("FORKS") != "1":
            microp.worker.run_threads = failing(microp.worker.run_threads)
            return self.basic.launch(job_overrides, initial_job_idx)
        for number, overrides in enumerate(job_overrides):
            if (child := os.fork()) == 0:
                [done] = self.basic.launch([overrides], initial_job_idx + number)
                os._exit(0 if done.status.name == "COMPLETED" else 1)
            assert os.waitpid(child, 0)[1] == 0
        return []
'''
LAUNCHER = ["hydra.launcher._target_=hydra_plugins.meddler.Meddler"]
QUIET = ["tracking=disabled", "comms=threads", *SMALL]
REFUSED = (
    "error: this launcher runs points at the same time, and the times of device=cpu would be those of shared cores: "
    "leave hydra/launcher out, or use parallel=true if you need no times"
)
ORDER = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
OTHER = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"


@pytest.fixture
def own(tmp_path):
    """A folder with a sweep, a schedule, a schedule file and a launcher of one's own."""
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "meddler.py").write_text(MEDDLER)
    (tmp_path / "my.csv").write_text(ORDER)
    (tmp_path / "other.csv").write_text(OTHER)
    code = "from microp.schedule.builders import gpipe\n\n\ndef f(ranks: int, chunks: int):\n"
    (tmp_path / "mine.py").write_text(f"{code}    return gpipe(ranks, chunks, 'fifo')\n")
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "mine.yaml").write_text("name: mine\nbuilder: mine.f\n")
    (tmp_path / "own.yaml").write_text("defaults: [config, _self_]\nseed: 11\n")
    return tmp_path


def sweep(folder: Path, *words: str, **environment: str):
    path = f"{ROOT}{os.pathsep}{folder}"
    given = ("-cd", ".", "-cn", "own", "-m", *LAUNCHER, *words, *QUIET)
    return alone(*given, folder=folder, PYTHONPATH=path, **environment)


def test_files_that_change_during_a_sweep_do_not_change_its_points(own):
    """The points run in processes of their own, with files of which Hydra would compose another point."""
    words = ["schedule=file,mine", "schedule.path=my.csv", "chunks=2", "skip=false,true"]
    refused = sweep(own, *words, FORKS="1")  # a launcher that is not Hydra's may run points at the same time
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (2, REFUSED)
    assert not (own / "outputs").exists()
    done = sweep(own, *words, "parallel=true", FORKS="1")
    assert done.returncode == 0, done.stderr
    [folder] = (own / "outputs" / "sweeps").iterdir()
    planned_runs = [point["run_id"] for point in read(folder / "plan.json")["points"]]
    attempts = {path.parent.name: path for path in (own / "outputs" / "runs").glob("*/attempt-*")}
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
    assert "parallel" in done.stdout


def test_fail_fast_stops_a_sweep_at_its_first_failed_point(own):
    emulated = ["device=emulated", "device.forward_ms=1", "device.backward_ms=1"]  # its points may share the cores
    done = sweep(own, "chunks=2,3,4", "fail_fast=true", *emulated)
    assert done.returncode == 1
    assert done.stdout.startswith("1 finished, 1 failed, the same in all: ")
    assert "rank 1 failed" in done.stdout + done.stderr
    assert "error: the sweep stops: fail_fast=true: gpipe-m3-" in done.stderr
    [table] = (own / "outputs" / "sweeps").glob("*/table.csv")
    assert [row["status"] for row in csv.DictReader(table.open())] == ["finished", "failed", "planned"]
    assert not list((own / "outputs" / "runs").glob("*-m4-*"))


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


CHOOSER = '''
"""A sweeper that chooses each point after the one before it; Hydra takes sweepers only from `hydra_plugins`."""
import json
from pathlib import Path
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
class Chooser(Sweeper):
    def __init__(self, **_): pass
    def setup(self, **given): self.launcher = Plugins.instance().instantiate_launcher(**given)
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
    done = alone(*words, folder=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
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
