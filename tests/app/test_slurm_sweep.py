"""What a sweep does with Slurm's answers, given by a Slurm of the test's own, which loses and refuses jobs at will."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typed import Terminal
from user import ROOT

from microp.app import config_checks, slurm_sweep
from microp.app.config import compose_config, read_config
from microp.app.errors import ConfigError, Stop
from microp.app.job_factory import make_job
from microp.app.planned import Planned
from microp.app.points import run_from_plan
from microp.app.slurm_sweep import SlurmSweep
from microp.slurm import QueuedJob, RefusedError, UnreachableError
from microp.store import SweepPlan, read_status
from microp.terminal import Board

WORDS = ["launch=slurm", "tracking=disabled", "comms=threads", "model.layers=4", "model.dim=32", "batch_size=8"]
WORDS += ["steps=3", "warmup_steps=1"]


class FakeSlurm:
    """Jobs run when they are looked at, one per look, in this process; `ends` tells how those of some runs end."""

    def __init__(self, monkeypatch) -> None:
        self.patch, self.states, self.commands = monkeypatch, {}, {}
        self.ends: dict[int, str] = {}  # number of a job -> a state, `lost` or `fails`
        self.refuses: set[int] = set()  # numbers of submissions
        self.looks: list[int] = []  # jobs in the queue at each look
        self.submitted = 0
        for name in ("submit", "jobs", "cancel", "ended_as"):
            monkeypatch.setattr(slurm_sweep, name, getattr(self, name))
        monkeypatch.setattr(slurm_sweep.time, "sleep", lambda _: None)
        monkeypatch.setattr(slurm_sweep, "SETTLE_S", 0)
        monkeypatch.setattr(config_checks, "no_slurm", list)

    def submit(self, path: Path) -> str:
        self.submitted += 1
        if self.submitted in self.refuses:
            raise RefusedError("sbatch: error: too many jobs")
        job = str(len(self.states) + 1)
        self.states[job] = "PENDING"
        self.commands[job] = shlex.split(path.read_text().splitlines()[-1])[-2:]
        return job

    def jobs(self) -> dict[str, QueuedJob]:
        self.looks.append(sum(state == "PENDING" for state in self.states.values()))
        if job := next((job for job, state in self.states.items() if state == "PENDING"), None):
            end = self.ends.get(int(job), "COMPLETED")
            if end == "away":
                self.ends.pop(int(job))
                raise UnreachableError("squeue: error: no contact")
            if end == "COMPLETED":
                self.patch.setenv("SLURM_JOB_ID", job)
                assert run_from_plan(*self.commands[job]) == 0
            self.states[job] = end
        rows = {job: QueuedJob(job, state, "None", "", "") for job, state in self.states.items()}
        return {job: row for job, row in rows.items() if row.state != "lost"}

    def cancel(self, ids) -> None:
        self.states |= dict.fromkeys(ids, "CANCELLED")

    def ended_as(self, job: str) -> None:
        """There is no accounting."""


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


def test_all_points_are_submitted_together_and_each_is_one_job(slurm, capsys):
    sweep, points = planned_sweep()
    assert states(sweep, points) == ["finished"] * 3
    assert slurm.looks[:2] == [0, 3]
    assert sweep.left() == []
    assert "submitted to Slurm: 3 jobs, 1 to 3; batch files and logs are in outputs/sweeps/mine/slurm" in "".join(
        capsys.readouterr().err.splitlines()
    )
    again = SlurmSweep(sweep._plan)
    assert states(again, points) == ["finished"] * 3
    assert slurm.submitted == 3


def test_at_most_so_many_jobs_are_in_the_queue(slurm):
    sweep, points = planned_sweep("launch.at_once=2", points=4)
    assert states(sweep, points) == ["finished"] * 4
    assert max(slurm.looks) == 2


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("TIMEOUT", "job 2 of Slurm ended (TIMEOUT): its time was over, use a larger launch.minutes"),
        ("FAILED", "job 2 of Slurm ended (FAILED): it left no result, see its log"),
        ("lost", "job 2 of Slurm ended (unknown): it left no result, see its log"),
    ],
)
def test_a_job_without_a_result_is_a_failed_point_with_the_reason(slurm, end, why):
    slurm.ends[2] = end
    sweep, points = planned_sweep()
    assert states(sweep, points) == ["finished", "failed", "finished"]
    [attempt] = points[1].run.glob("attempt-*")
    assert read_status(attempt)["message"] == why
    assert read_status(attempt)["log"] == f"outputs/sweeps/mine/slurm/{points[1].job.run_id}.log"


def test_a_sweep_goes_on_waiting_while_slurm_does_not_answer(slurm, capsys):
    slurm.ends[1] = "away"
    sweep, points = planned_sweep(points=1)
    assert states(sweep, points) == ["finished"]
    assert "Slurm does not answer (squeue: error: no contact)" in capsys.readouterr().err


def test_a_job_that_is_refused_while_others_are_in_the_queue_is_submitted_later(slurm, capsys):
    slurm.refuses = {2}
    sweep, points = planned_sweep()
    assert states(sweep, points) == ["finished"] * 3
    assert slurm.submitted == 4
    assert capsys.readouterr().err.count("too many jobs") == 1


def test_the_first_job_that_is_refused_is_bad_input(slurm):
    slurm.refuses = {1}
    sweep, points = planned_sweep("launch.partition=gpu", "launch.options=['--qos=low']")
    with pytest.raises(ConfigError) as refused:
        sweep.attempt_of(points[0], Board())
    [problem] = refused.value.problems
    run = points[0].job.run_id
    assert problem == (
        f"Slurm refuses the job of {run} with launch.partition=gpu launch.nodes=1 launch.gpus_per_node=0 "
        f"launch.options=['--qos=low'] (sbatch: error: too many jobs): change these, see "
        f"outputs/sweeps/mine/slurm/{run}.sh"
    )


def test_a_sweep_stops_if_a_job_is_refused_and_none_is_left(slurm):
    slurm.refuses = {2}
    sweep, points = planned_sweep("launch.at_once=1", points=2)
    with pytest.raises(Stop, match="Slurm refuses the job"):
        states(sweep, points)
    assert [point.finished() is not None for point in points] == [True, False]


def test_the_command_of_the_readme_is_valid(slurm, capsys):
    lines = re.findall(r"^microp (-m launch=slurm [^#\n]*)", (ROOT / "README.md").read_text(), re.M)
    assert len(lines) == 1
    terminal = Terminal(ROOT)
    try:
        assert terminal.type(lines[0]) == 2  # as no sweep: all else is valid
    finally:
        terminal.close()
    assert {line for line in capsys.readouterr().err.splitlines() if line.startswith("error")} == {
        "error: launch=slurm is for the points of a sweep: type -m, also for one point"
    }


def test_a_plan_without_the_point_is_refused(slurm, capsys):
    planned_sweep(points=1)
    assert run_from_plan("outputs/sweeps/mine", "gpipe-m9-k9-00000000") == 2
    assert run_from_plan("outputs/sweeps/other", "gpipe-m9-k9-00000000") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("points.jsonl has no point gpipe-m9-k9-00000000: give one of its run ids")
    assert second.startswith("error: outputs/sweeps/other has no plan of a sweep: ")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("plan.json", "{", "plan.json cannot be read (line 1 is not JSON): run its sweep again"),
        ("plan.json", "[]", "plan.json cannot be read (it is not a plan): run its sweep again"),
        ("points.jsonl", "[1]\n", "points.jsonl has no point RUN: give one of its run ids"),
        (
            "points.jsonl",
            '{"run_id": "RUN", "overrides": []}\n',
            "error: the plan's point RUN is damaged (KeyError('config')): run its sweep again",
        ),
    ],
)
def test_a_damaged_plan_is_refused(file, text, said, slurm, capsys):
    sweep, [point] = planned_sweep(points=1)
    run = point.job.run_id
    (sweep._plan.folder / file).write_text(text.replace("RUN", run))
    assert run_from_plan("outputs/sweeps/mine", run) == 2
    assert capsys.readouterr().err.strip().endswith(said.replace("RUN", run))
    assert not point.run.exists()
