"""Runs the points of a sweep as jobs of Slurm: submits them, follows them, and takes their results.

::

    plan ── a batch file per point ── submit ──► the queue ── has ended ──► its attempt, as if it had run here
                                                      └────── was killed ─► its attempt, closed with Slurm's reason

    outputs/sweeps/<time>_<name>/slurm/<run>.sh, <run>.log

A job runs `python -m microp.point FOLDER RUN`, which reads the point from the sweep's plan. The folder of results has
to be one that this host and the nodes share. A sweep that is interrupted cancels its jobs. If its process is killed,
they go on, and the same command finds them in the queue.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path

from microp.app.errors import ConfigError, Stop
from microp.app.planned import Planned, experiment_of, planned
from microp.job import Job
from microp.settings import SlurmSettings
from microp.slurm import (
    ENDED,
    BatchJob,
    QueuedJob,
    RefusedError,
    UnreachableError,
    batch_file,
    cancel,
    ended_as,
    jobs,
    submit,
)
from microp.store import (
    DIVERGED,
    KILLED,
    RecordError,
    SweepPlan,
    attempts,
    checksums,
    read_json,
    read_status,
    snapshots,
    summarise,
    write_json,
    write_text,
)
from microp.terminal import Board, console

SETTLE_S = 20  # that files may take to be seen from another host
UNKNOWN = "unknown"  # how a job ended that is no longer in the queue, without accounting
BY_ITSELF = ("COMPLETED", "FAILED", UNKNOWN)
WAITS = ("None", "Priority", "Resources", "BeginTime", "Prolog", "Cleaning")  # for what a pending job waits as a rule
REMEDIES = {
    "TIMEOUT": "its time was over, use a larger launch.minutes",
    "OUT_OF_MEMORY": "it needed more memory, use launch.options=['--mem=...']",
    "NODE_FAIL": "its node failed",
    "CANCELLED": "it was cancelled",
    "PREEMPTED": "it had to make room, use launch.requeue=true",
}
_sweeps: dict[Path, SlurmSweep] = {}


def slurm_sweep(plan: SweepPlan) -> SlurmSweep:
    """Return the jobs of a sweep, the same object for all points of this process."""
    if plan.folder not in _sweeps:
        _sweeps[plan.folder] = SlurmSweep(plan)
    return _sweeps[plan.folder]


def cancel_jobs() -> None:
    """Cancel the jobs whose results are no longer waited for."""
    while _sweeps:
        _, sweep = _sweeps.popitem()
        if left := sweep.left():
            cancel(left)
            console.note(f"cancelled in Slurm: {_counted(left)}")


class SlurmSweep:
    """The jobs of one sweep.

    Args:
        plan: the sweep's plan; all of its points that Slurm is to run are submitted together.
    """

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._folder = plan.folder.absolute() / "slurm"
        self._ids: dict[str, str] = {}  # run -> job
        self._own: set[str] = set()  # the jobs that this sweep has submitted
        self._ended: dict[str, str] = {}  # job -> the state in which it ended
        self._listed: dict[str, QueuedJob] = {}
        self._said: set[str] = set()
        points = [planned(record) for record in plan.points() if "run_id" in record]
        self._waiting = deque(
            point for point in points if isinstance(point.config.launch, SlurmSettings) and not self._finished(point)
        )

    def attempt_of(self, point: Planned, board: Board) -> Path:
        """Return the attempt of a point when its job has ended, finished or not.

        Raises:
            ConfigError: Slurm refuses the first job, or does not answer; nothing has been started.
            Stop: Slurm refuses a job, and none of the others runs.
        """
        run, settings = point.job.run_id, _settings(point)
        if done := self._finished(point):
            return done
        if run not in self._ids and all(run != each.job.run_id for each in self._waiting):
            self._waiting.append(point)  # a sweeper has only just chosen it
        while (attempt := self._finished(point)) is None:
            if self._look():
                self._submit()
            if (job := self._ids.get(run)) in self._ended:
                attempt = self._result(point, str(job))
                break
            time.sleep(settings.poll_s)
        self._ended.setdefault(self._ids.get(run, ""), "COMPLETED")  # it may still mirror its run to W&B
        board.skip(len(list(point.job.phases())))
        return attempt

    def left(self) -> list[str]:
        """Return the jobs that this sweep has submitted and that have not ended."""
        return sorted(self._own - self._ended.keys(), key=lambda job: (len(job), job))

    def _finished(self, point: Planned) -> Path | None:
        return point.finished(self._plan.again)

    def _look(self) -> bool:
        """Find out which jobs have ended; return whether Slurm answers."""
        try:
            self._listed = jobs()
        except UnreachableError as error:
            if not self._ids:
                raise ConfigError([f"launch=slurm, but Slurm does not answer ({error}): try again later"]) from error
            self._say(f"Slurm does not answer ({error}): this sweep goes on waiting", "unreachable")
            return False
        for run, job in self._ids.items():
            if job in self._ended:
                continue
            found = self._listed.get(job)
            if found is None:
                self._ended[job] = ended_as(job) or UNKNOWN
            elif found.state in ENDED:
                self._ended[job] = found.state
            elif found.state == "PENDING" and found.reason not in WAITS:
                self._say(f"Slurm does not start job {job} of {run} now: {found.reason}", found.reason)
        return True

    def _say(self, text: str, about: str) -> None:
        """Warn once of each thing."""
        if about not in self._said:
            self._said.add(about)
            console.warn(text)

    def _running(self) -> int:
        return len(set(self._ids.values()) - self._ended.keys())

    def _submit(self) -> None:
        """Submit points as long as the queue may have more jobs."""
        new: list[str] = []
        while self._waiting:
            point = self._waiting[0]
            at_once = _settings(point).at_once
            if at_once is not None and self._running() >= at_once:
                break
            if not self._finished(point):  # another process may have run it in the meantime
                if (job := self._earlier(point) or self._new(point)) is None:
                    break
                self._ids[point.job.run_id] = job
                new += [job] if job in self._own else []
            self._waiting.popleft()
        if new:
            console.note(f"submitted to Slurm: {_counted(new)}; batch files and logs are in {self._plan.folder}/slurm")

    def _earlier(self, point: Planned) -> str | None:
        """Return the job of this point that an earlier command has left in the queue, if any."""
        if self._plan.again:
            return None
        for job in self._listed.values():
            if (job.name, job.folder) == (point.job.run_id, str(Path.cwd())) and job.state in ("PENDING", "RUNNING"):
                console.note(f"job {job.id} in the queue runs {job.name}: this sweep waits for it")
                return job.id
        return None

    def _new(self, point: Planned) -> str | None:
        """Submit a point and return its job; None if Slurm takes no more jobs as long as others are in the queue."""
        run, settings = point.job.run_id, _settings(point)
        path = self._folder / f"{run}.sh"
        module = ["microp.point", os.path.relpath(self._plan.folder), run]
        job = BatchJob(run, point.job.processes, str(Path.cwd()), str(self._log(run)), sys.executable, module)
        self._folder.mkdir(exist_ok=True)
        write_text(path, batch_file(settings, job))
        try:
            taken = submit(path)
        except RefusedError as error:
            asked = " ".join(f"launch.{key}={value}" for key, value in vars(settings).items() if _is_asked(key, value))
            refused = (
                f"Slurm refuses the job of {run} with {asked} ({error}): change these, see {os.path.relpath(path)}"
            )
            if not self._ids:
                raise ConfigError([refused]) from error
            if not self._running():
                raise Stop(refused) from error
            self._say(f"{refused}; it is submitted again when another job has ended", "refused")
            return None
        self._own.add(taken)
        return taken

    def _log(self, run: str) -> Path:
        return self._folder / f"{run}.log"

    def _result(self, point: Planned, job: str) -> Path:
        """Return the attempt of a job that has ended; one that did not record its end is closed."""
        state = self._ended[job]
        deadline = time.monotonic() + (SETTLE_S if state in BY_ITSELF else 0)
        while True:
            left = _left_by(point.run, job)
            if left and read_status(left)["status"] in ("finished", "failed", DIVERGED):
                return left
            if time.monotonic() > deadline:
                break
            time.sleep(1)
        why = f"job {job} of Slurm ended ({state}): {REMEDIES.get(state, 'it left no result, see its log')}"
        log = os.path.relpath(self._log(point.job.run_id))
        if left is None:
            return self._failed(point, why, Path(log))
        close_killed(left, point.job, why, log)
        return left

    def _failed(self, point: Planned, why: str, log: Path) -> Path:
        """Return an attempt that records that a job ended before its ranks began."""
        from microp.app.attempt import Attempt
        from microp.worker import RankError  # torch takes a second, and a sweep of jobs seldom needs it

        with Attempt(point.config, point.job, experiment_of(self._plan.head["name"]), point.overrides) as folder:
            raise RankError(why, log)
        return folder


def close_killed(attempt: Path, job: Job, message: str, log: str | None = None) -> None:
    """Close an attempt whose process was killed without recording its end.

    Args:
        attempt: its folder.
        job: the job of its point.
        message: why it was killed.
        log: the file with its output.
    """
    snapshots.remove_drafts(attempt)
    write_json(attempt / "summary.json", summarise(job, attempt, KILLED))
    status = {**read_json(attempt / "status.json"), "status": KILLED, "message": message, "log": log}
    write_json(attempt / "status.json", {**status, "ended": time.time(), "files": checksums(attempt)})


def close_requeued(run: Path, job: Job) -> None:
    """Close what an earlier start of this job of Slurm has left open, before it was started again."""
    if (left := _left_by(run, os.environ.get("SLURM_JOB_ID", ""))) and read_status(left)["status"] in OPEN:
        close_killed(left, job, "Slurm ended the job to start it again")


OPEN = ("running", "interrupted", KILLED)


def _left_by(run: Path, job: str) -> Path | None:
    """Return the last attempt of a run that was made by a job of Slurm."""
    for attempt in reversed(attempts(run)):
        try:
            if read_status(attempt).get("slurm_job") == job:
                return attempt
        except RecordError:
            continue
    return None


def _settings(point: Planned) -> SlurmSettings:
    assert isinstance(point.config.launch, SlurmSettings), "only points with launch=slurm are jobs"
    return point.config.launch


def _is_asked(key: str, value: object) -> bool:
    return key in ("partition", "account", "minutes", "nodes", "gpus_per_node", "options") and value not in (None, [])


def _counted(ids: list[str]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs, {ids[0]} to {ids[-1]}"
