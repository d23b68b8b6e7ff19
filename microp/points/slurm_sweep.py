"""Runs the points of a sweep as jobs of Slurm, through submitit: submits them, waits, and takes their results.

::

    plan ── submitit ──► sbatch ── srun ─┬─ task 0 = rank 0 ─┐  PointJob: the ranks meet as those of torchrun do,
                                         └─ task 1 = rank 1 ─┘  and write the point's attempt
         ◄── squeue: the job has ended ── its attempt; one that Slurm has killed is closed with the job's state

    outputs/sweeps/<time>_<name>/slurm/<job>_submission.sh, <job>_0_log.out, <job>_0_log.err

The folder of results has to be one that this host and the nodes share. A sweep that is interrupted cancels its jobs. If
its process is killed they go on: the same command waits for a point as long as another process holds its lock, and
takes what has finished.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microp import records
from microp.config import ConfigError, Stop, find_resumed
from microp.points.planned import Planned, planned
from microp.points.run import run_attempt
from microp.settings import SlurmSettings
from microp.terminal import Board, console

if TYPE_CHECKING:
    from submitit import Job as SlurmJob
    from submitit import SlurmExecutor
    from submitit.helpers import DelayedSubmission

ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT", UNKNOWN := "unknown"),  # the last: squeue lists a job for some minutes
    }
)  # states of a job that runs no more; one that is started again is PENDING
WAITS = ("None", "Priority", "Resources", "BeginTime", "Prolog", "Cleaning")  # for what a pending job waits as a rule
SETTLE_S = 20  # that files of a job that ended by itself may take to be seen from another host
SIGNAL_S = 30  # before the end of its time a job is told, and asks Slurm to start it again
TIMES = 3  # that a job which goes on from snapshots may run out of time
_sweeps: dict[Path, SlurmSweep] = {}


def slurm_sweep(plan: records.SweepPlan) -> SlurmSweep:
    """Return the jobs of a sweep, the same object for all points of this process."""
    if plan.folder not in _sweeps:
        _sweeps[plan.folder] = SlurmSweep(plan)
    return _sweeps[plan.folder]


def cancel_jobs() -> None:
    """Cancel the jobs whose results are no longer waited for."""
    while _sweeps:
        _, sweep = _sweeps.popitem()
        if jobs := sweep.running():
            for job in jobs:
                job.cancel(check=False)
            console.note(f"cancelled in Slurm: {_counted(jobs)}")


@dataclass
class PointJob:
    """What a job runs: each of its tasks is one rank of the point."""

    record: dict[str, Any]  # the point, as the sweep's plan has it
    again: bool  # whether an attempt from before the plan does not count

    def __call__(self) -> None:
        """Run one rank, unless another process has finished the point since it was planned."""
        from submitit.helpers import TorchDistributedEnvironment

        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        point = planned(self.record)
        if not point.finished(self.again):
            job = point.job
            if point.config.snapshot.resume:  # Slurm may have started this before, and it goes on from what it saved
                job = replace(job, resumed=find_resumed(point.config, job))
            run_attempt(point._replace(job=job))

    def checkpoint(self) -> DelayedSubmission:
        """Return what the job runs when Slurm starts it again: the same, which goes on from its last snapshot."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmSweep:
    """The jobs of one sweep; all points of its plan that Slurm is to run are submitted together."""

    def __init__(self, plan: records.SweepPlan) -> None:
        self._plan = plan
        self._jobs: dict[str, SlurmJob[None]] = {}  # run -> its job
        self._ended: dict[str, str] = {}  # job -> the state in which it ended
        self._room = inf  # jobs that Slurm lets this user have at once, once it has refused one
        self._said: set[str] = set()
        points = [planned(record) for record in plan.points() if "run_id" in record]
        self._waiting = {
            point.job.run_id: point
            for point in points
            if isinstance(point.config.launch, SlurmSettings) and not point.finished(plan.again)
        }

    def attempt_of(self, point: Planned, board: Board) -> Path:
        """Return the attempt of a point when its job has ended, finished or not.

        Raises:
            ConfigError: Slurm refuses the first job; nothing has been started.
            Stop: Slurm refuses a job, and none of the others runs.
        """
        if point.job.run_id not in self._jobs:
            self._waiting.setdefault(point.job.run_id, point)  # a sweeper may have only just chosen it
        while (attempt := point.finished(self._plan.again)) is None and self._is_under_way(point):
            time.sleep(_settings(point).poll_s)
        if job := self._jobs.get(point.job.run_id):
            attempt = attempt or self._result(point, job)
            self._ended.setdefault(job.job_id, "COMPLETED")  # it may still mirror its run to W&B
        assert attempt is not None, "a point without a job is waited for until it has finished"
        board.skip()
        return attempt

    def running(self) -> list[SlurmJob[None]]:
        """Return the jobs that have not ended."""
        return [job for job in self._jobs.values() if job.job_id not in self._ended]

    def _is_under_way(self, point: Planned) -> bool:
        """Look at the queue, and submit what it has room for; return whether a point still waits or runs anywhere."""
        self._look()
        self._submit()
        job = self._jobs.get(point.job.run_id)
        return job is None or job.job_id not in self._ended or records.owner_of(point.run) is not None

    def _look(self) -> None:
        """Find out which jobs have ended. submitit would ask the accounting, which not every cluster has."""
        if not (running := self.running()):
            return
        command = ["squeue", "--me", "--states=all", "--noheader", "--format=%i|%T|%r"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            self._say(f"Slurm does not answer ({' '.join(done.stderr.split())}): this sweep goes on waiting")
            return
        rows = {row[0]: row[1:] for line in done.stdout.splitlines() if len(row := line.split("|")) == 3}
        for job in running:
            state, reason = rows.get(job.job_id, (UNKNOWN, ""))
            if state in ENDED:
                self._ended[job.job_id] = state
            elif state == "PENDING" and reason not in WAITS:
                self._say(f"Slurm does not start job {job.job_id} now: {reason}")

    def _submit(self) -> None:
        """Submit points as long as the queue may have more jobs."""
        submitted = []
        for run, point in list(self._waiting.items()):
            if len(self.running()) >= min(self._room, _settings(point).at_once or inf):
                break
            if owner := records.owner_of(point.run):
                self._say(f"{run} is being run by {owner}: this sweep waits, and takes its result")
                continue
            if not point.finished(self._plan.again):
                if (job := self._new(point)) is None:
                    break
                self._jobs[run] = job
                submitted.append(job)
            del self._waiting[run]
        if submitted:
            console.note(f"submitted to Slurm: {_counted(submitted)}; its files are in {self._plan.folder}/slurm")

    def _say(self, text: str) -> None:
        """Say something once."""
        if text not in self._said:
            self._said.add(text)
            console.note(text)

    def _new(self, point: Planned) -> SlurmJob[None] | None:
        """Submit a point and return its job; None if Slurm takes no more jobs as long as others are in the queue."""
        from submitit.core.utils import FailedJobError

        job = PointJob(point.record(), self._plan.again)
        try:
            return executor(self._plan.folder / "slurm", point).submit(job)
        except FailedJobError as error:
            said = " ".join(str(error).split())
            refused = f"Slurm refuses the job of {point.job.run_id} ({said}): change its keys of launch"
            if not self._jobs:
                raise ConfigError([refused]) from error
            if not self.running():
                raise Stop(refused) from error
            self._say(f"{refused}; it is submitted again when another job has ended")
            self._room = len(self.running())
            return None

    def _result(self, point: Planned, job: SlurmJob[None]) -> Path:
        """Return the attempt of a job that has ended; those that did not record their end are closed."""
        state, log = self._ended[job.job_id], Path(os.path.relpath(job.task(0).paths.stderr))
        deadline = time.monotonic() + (SETTLE_S if state in ("COMPLETED", "FAILED", UNKNOWN) else 0)
        while True:
            states = {  # the job makes another attempt when it is started again
                attempt: status["status"]
                for attempt in point.made()
                if (status := records.read_status(attempt)).get("slurm_job") == job.job_id
            }
            left = list(states)
            if (left and states[left[-1]] not in (records.RUNNING, records.KILLED)) or time.monotonic() > deadline:
                break
            time.sleep(1)
        unended = [attempt for attempt in left if states[attempt] in (records.RUNNING, records.KILLED)]
        if left and not unended:
            return left[-1]
        from microp.points.attempt import Attempt, close_attempt
        from microp.worker import RankError  # torch takes a second, and a sweep of jobs seldom needs it

        why = f"job {job.job_id} of Slurm ended ({state}) without a result: see its log"
        for attempt in unended:
            close_attempt(attempt, point.job, records.KILLED, why, log)
        if left:
            return left[-1]
        with Attempt(point) as folder:
            raise RankError(why, log)  # before its ranks began
        return folder


def executor(folder: Path, point: Planned) -> SlurmExecutor:
    """Return what submits a point's job."""
    from submitit import SlurmExecutor

    settings, snapshot = _settings(point), point.config.snapshot
    words = [option.removeprefix("--").partition("=") for option in settings.options]
    made = SlurmExecutor(folder, max_num_timeout=TIMES if snapshot.every and snapshot.resume else 0)
    made.update_parameters(
        job_name=point.job.run_id,
        partition=settings.partition,
        account=settings.account,
        time=settings.minutes,
        nodes=settings.nodes,
        ntasks_per_node=settings.ranks_per_node(point.job.processes),
        cpus_per_task=settings.cores_per_rank,
        gpus_per_node=settings.gpus_per_node or None,
        setup=settings.setup,
        signal_delay_s=SIGNAL_S,
        srun_args=["--kill-on-bad-exit=1", f"--cpus-per-task={settings.cores_per_rank}"],  # sbatch's is not srun's
        additional_parameters={
            "requeue" if settings.requeue else "no-requeue": True,
            **({} if settings.minutes else {"signal": "CONT"}),  # submitit asks how much of its minutes a job has used
            **{key: value if is_given else True for key, is_given, value in words},
        },
    )
    return made


def _settings(point: Planned) -> SlurmSettings:
    assert isinstance(point.config.launch, SlurmSettings), "only points with launch=slurm are jobs"
    return point.config.launch


def _counted(jobs: list[SlurmJob[None]]) -> str:
    return f"job {jobs[0].job_id}" if len(jobs) == 1 else f"{len(jobs)} jobs, {jobs[0].job_id} to {jobs[-1].job_id}"
