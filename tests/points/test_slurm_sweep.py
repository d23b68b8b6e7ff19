"""What a sweep does with the answers of a made-up Slurm; one job runs as tasks of submitit's LocalExecutor."""

from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from submitit import LocalExecutor
from submitit.core.utils import FailedJobError

from microp.config import config_checks
from microp.config.config import compose_config, read_config
from microp.config.errors import ConfigError
from microp.config.job_factory import make_job
from microp.points import slurm_sweep
from microp.points.planned import Planned, planned
from microp.points.run import run_attempt
from microp.points.slurm_sweep import SlurmSweep
from microp.records import SweepPlan, hold, read_status
from microp.terminal import Board

WORDS = ["launch=slurm", "tracking=disabled", "model.layers=4", "model.dim=32", "batch_size=8"]
WORDS += ["steps=3", "warmup_steps=1"]
submit_to_slurm = slurm_sweep.executor


class FakeSlurm:
    """Its jobs run when they are looked at, one per look, in this process; `ends` tells how those of some runs end."""

    def __init__(self, monkeypatch) -> None:
        self.patch, self.states, self.jobs = monkeypatch, {}, {}
        self.ends: dict[int, str] = {}  # number of a job -> its last state, or `away`
        self.refuses: set[int] = set()  # numbers of submissions
        self.most = 0  # jobs in the queue at once
        self.numbers = count(1)
        monkeypatch.setattr(slurm_sweep, "executor", lambda folder, point: self)
        monkeypatch.setattr(slurm_sweep, "subprocess", SimpleNamespace(run=self.squeue, DEVNULL=None))
        monkeypatch.setattr(slurm_sweep.time, "sleep", lambda _: None)
        monkeypatch.setattr(slurm_sweep, "SETTLE_S", 0)
        monkeypatch.setattr(config_checks.settings, "no_slurm", list)

    def submit(self, job):
        if next(self.numbers) in self.refuses:
            raise FailedJobError("sbatch: error: too many jobs")
        name = str(len(self.jobs) + 1)
        self.jobs[name], self.states[name] = job, "PENDING"
        self.most = max(self.most, sum(state == "PENDING" for state in self.states.values()))
        paths = SimpleNamespace(stderr=Path(f"{name}_0_log.err").absolute())
        return SimpleNamespace(job_id=name, task=lambda _: SimpleNamespace(paths=paths))

    def squeue(self, *_: object, **__: object):
        if name := next((name for name, state in self.states.items() if state == "PENDING"), None):
            end = self.ends.get(int(name), "COMPLETED")
            if end == "away":
                del self.ends[int(name)]
                return SimpleNamespace(returncode=1, stderr="squeue: error: no contact")
            if end == "COMPLETED":
                self.patch.setenv("SLURM_JOB_ID", name)
                point = planned(self.jobs[name].record)
                run_attempt(point._replace(job=replace(point.job, backend="threads")))
            self.states[name] = end
        rows = [f"{name}|{state}|None\n" for name, state in self.states.items() if state != "lost"]
        return SimpleNamespace(returncode=0, stdout="".join(rows))


@pytest.fixture
def slurm(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return FakeSlurm(monkeypatch)


def planned_sweep(*words: str, points: int = 3) -> tuple[SlurmSweep, list[Planned]]:
    made = []
    for chunks in range(1, points + 1):
        typed = [*WORDS, *words, f"chunks={chunks}"]
        config = read_config(compose_config(*typed))
        made.append(Planned(typed, config, make_job(config)))
    plan = SweepPlan(Path("outputs/sweeps/mine"))
    plan.folder.mkdir(parents=True)
    plan.write({"again": False, "name": "config"}, [point.record() for point in made])
    return SlurmSweep(plan), made


def states(sweep: SlurmSweep, points: list[Planned]) -> list[str]:
    return [read_status(sweep.attempt_of(point, Board()))["status"] for point in points]


@pytest.mark.parametrize(("words", "most"), [((), 3), (("launch.at_once=2",), 2)])
def test_all_points_are_submitted_together_unless_at_once_is_less_and_each_is_one_job(slurm, words, most):
    sweep, points = planned_sweep(*words)
    assert states(sweep, points) == ["finished"] * 3
    assert (slurm.most, len(slurm.jobs), sweep.running()) == (most, 3, [])


@pytest.mark.parametrize("end", ["TIMEOUT", "FAILED", "lost"])
def test_a_job_without_a_result_is_a_failed_point_with_the_reason(slurm, end):
    slurm.ends[2] = end
    sweep, points = planned_sweep()
    assert states(sweep, points) == ["finished", "failed", "finished"]
    [attempt] = points[1].run.glob("attempt-*")
    state = "unknown" if end == "lost" else end
    assert read_status(attempt)["message"] == f"job 2 of Slurm ended ({state}) without a result: see its log"
    assert read_status(attempt)["log"] == "2_0_log.err"


def test_a_sweep_goes_on_waiting_while_slurm_does_not_answer(slurm, capsys):
    slurm.ends[1] = "away"
    sweep, points = planned_sweep(points=1)
    assert states(sweep, points) == ["finished"]
    assert "Slurm does not answer (squeue: error: no contact)" in capsys.readouterr().err


def test_a_point_that_another_process_runs_is_waited_for(slurm, capsys, monkeypatch):
    sweep, points = planned_sweep(points=1)
    with ExitStack() as other:
        other.enter_context(hold(points[0].run))
        monkeypatch.setattr(slurm_sweep.time, "sleep", lambda _: other.close())
        assert states(sweep, points) == ["finished"]
    assert "is being run by process" in capsys.readouterr().err


def test_a_job_that_is_refused_while_others_are_in_the_queue_is_submitted_later_and_else_bad_input(slurm, capsys):
    slurm.refuses = {1, 3}
    sweep, points = planned_sweep()
    with pytest.raises(ConfigError, match=r"Slurm refuses the job of .* \(sbatch: error: too many jobs\)"):
        sweep.attempt_of(points[0], Board())
    assert states(sweep, points) == ["finished"] * 3
    assert capsys.readouterr().err.count("too many jobs") == 1


def test_a_job_is_asked_for_as_launch_says(tmp_path, slurm, monkeypatch):
    """What sbatch gets; the test's own refuses it, and keeps it."""
    for name, line in {"sbatch": f"cp $1 {tmp_path}/asked; echo no >&2; exit 1", "srun": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ["nodes=2", "cores_per_rank=3", "gpus_per_node=1", "partition=gpu", "minutes=90", "requeue=false"]
    words += ["options=['--mem=8G','--exclusive']", "setup=['module load cuda']"]
    _, [point] = planned_sweep(*(f"launch.{word}" for word in words), points=1)
    with pytest.raises(FailedJobError):
        submit_to_slurm(tmp_path / "jobs", point).submit(len)
    asked = set((tmp_path / "asked").read_text().replace("#SBATCH ", "").splitlines())
    assert asked >= {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=3", "--gpus-per-node=1", "--partition=gpu"}
    assert asked >= {"--time=90", "--no-requeue", "--mem=8G", "--exclusive", "module load cuda", "--signal=USR2@30"}


def test_the_tasks_of_a_job_are_the_ranks_of_its_point(slurm, monkeypatch, tmp_path):
    """submitit starts a job's tasks on this host, with all that they get from it under Slurm but Slurm itself."""
    sweep, [point] = planned_sweep(points=1)
    local = LocalExecutor(sweep._plan.folder / "slurm")
    local.update_parameters(tasks_per_node=2, timeout_min=10)
    job = slurm_sweep.PointJob(point.record(), False)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    local.submit(job).results()
    attempt = point.finished()
    assert attempt is not None
    assert len(list(attempt.glob("steps.rank*.jsonl"))) == 2
    assert job.checkpoint().function == job
    assert [read_status(attempt)["status"]] == states(sweep, [point]) == ["finished"]
    assert slurm.jobs == {}
