"""Runs points, one or a sweep: writes the plan, leaves out finished points, shows the progress and the table.

::

    outputs/sweeps/<time>_<name>/  plan.json   the command, and its runs with their overrides
                                   table.csv   their summaries, one row per point, also of an interrupted sweep

    point ── has a finished attempt? ── yes ─► its numbers
                                     ── no ──► run it
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from microp.app import config_checks, terminal
from microp.app.config import Config, read_config
from microp.app.hydra_callbacks import Point, PointsCallback, config_name, is_sweep, loud, refuse, speaks, sweep_folder
from microp.app.job_factory import make_job
from microp.job import Job
from microp.settings import is_joined
from microp.store import SCHEMA_VERSION, RecordError, attempts, read_json, read_status, read_summary, write_json

board = terminal.Board()  # global, because Hydra creates the callback that shares it with `run_point`
_open: list[SweepCallback] = []  # the sweep that has been planned and has not ended


def run_point(config: DictConfig) -> Path | None:
    """Run one point, unless it is a finished point of a sweep; this is Hydra's task function.

    Returns:
        the attempt's folder; None if nothing was run.
    """
    from microp.app.attempt import Attempt, run_as_rank
    from microp.worker import launch_ranks, run_threads  # torch takes a second, too slow for --help and TAB

    point = read_config(config)
    folder, experiment = sweep_folder(), experiment_of(config_name())
    if folder is not None and point.skip:
        return None
    job: Job = SweepCallback.take(point)
    if folder is not None:
        since = read_json(folder / "plan.json")["since"]
        if finished(Path(point.output_dir) / "runs" / job.run_id, since):
            return None
    if is_joined():
        return run_as_rank(point, job, experiment)
    run = run_threads if job.backend == "threads" else launch_ranks
    steps = len(list(job.phases()))
    with Attempt(point, job, experiment) as attempt, board.point(job.run_id, steps, attempt / "steps.rank0.jsonl"):
        run(job, attempt, point.launch.shutdown_s)
    return attempt


def finished(run: Path, since: float) -> Path | None:
    """Return a run's last finished attempt that was started after `since` (seconds since 1970), or None."""
    for attempt in reversed(attempts(run)):
        try:
            status = read_status(attempt)
            if status["status"] == "finished" and status["started"] >= since:
                read_summary(attempt)
                return attempt
        except RecordError:  # an attempt that cannot be read answers nothing: the point runs again
            continue
    return None


def _started(attempt: Path) -> float:
    """Return when an attempt was started (seconds since 1970); 0 if that cannot be read."""
    try:
        return float(read_status(attempt)["started"])
    except RecordError:
        return 0.0


def close() -> None:
    """Remove the progress bar, and write the table of a sweep that was stopped before its end."""
    board.close()
    while _open:
        _open.pop().write_table()


class SweepCallback(PointsCallback):
    """Makes the job of every point, shows the progress and the table; exits with code 1 if a point failed."""

    @classmethod
    def prepare(cls, config: Config) -> Job:
        return make_job(config)

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if is_joined():
            refuse([ONE_RUN_ONLY])
        super().on_multirun_start(config)
        self._folder = Path(config.hydra.sweep.dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = config.hydra.job.config_name
        points = [{"run_id": run_id, "overrides": point.overrides} for run_id, point in self._points.items()]
        plan = {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "experiment": experiment_of(name) or name,
            "command": sys.argv,
            "since": self._since,
            "points": points,
        }
        write_json(self._folder / "plan.json", plan)
        self.write_table()
        _open.append(self)

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        close()
        super().on_multirun_end(config)

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        self._points: dict[str, Point] = {}
        for point in points:
            self._points.setdefault(point.made.run_id, point)  # equal points are one run
        self._output, self._tracking = Path(config.output_dir), config.tracking.mode
        self._began = time.time()
        self._since = 0.0 if is_sweep(config) and not config.again else self._began
        waiting = [point for name, point in self._points.items() if not self._finished(name)]
        if speaks():
            board.open([len(list(point.made.phases())) for point in waiting])
            texts = [text for point in waiting for text in config_checks.warnings(point.config, point.made)]
            for warning in dict.fromkeys(texts):
                terminal.warn(warning)
            if done := len(self._points) - len(waiting):
                terminal.note(f"{done} of {len(self._points)} points are finished already; again=true runs them again")

    def end(self, config: DictConfig) -> None:
        if not speaks():
            return
        board.close()
        summaries = self._summaries()
        terminal.show(summaries, self._output, self._tracking)
        if any(summary["status"] != "finished" for summary in summaries) or len(summaries) < max(1, len(self._points)):
            raise SystemExit(1)

    def write_table(self) -> None:
        """Write table.csv with one row per planned point; one that has not been run has only its name and status."""
        rows = {summary["run_id"]: summary for summary in self._summaries()}
        planned = {name: {"run_id": name, "status": "planned"} for name in self._points}
        pd.json_normalize(list((planned | rows).values())).to_csv(self._folder / "table.csv", index=False)

    def _finished(self, name: str) -> Path | None:
        return finished(self._output / "runs" / name, self._since)

    def _summaries(self) -> list[dict[str, Any]]:
        """Return one summary per point, in order: of its finished attempt, else of its attempt by this command."""
        found = []
        for name in self._points:
            attempt = self._finished(name) or self._last_made(name)
            if attempt is not None:
                message = read_status(attempt).get("message")
                found.append({**read_summary(attempt), "folder": str(attempt), "message": message})
        return found

    def _last_made(self, name: str) -> Path | None:
        made = [
            attempt
            for attempt in attempts(self._output / "runs" / name)
            if (attempt / "summary.json").exists() and _started(attempt) >= self._began
        ]
        return made[-1] if made else None


def experiment_of(name: str) -> str | None:
    """Return the experiment of a stored sweep, `m_sensitivity` also for `m_sensitivity_quick`.

    None for `config`, the name of a command without a stored sweep.
    """
    return None if name == "config" else name.removesuffix("_quick")


ONE_RUN_ONLY = (
    "torchrun starts the ranks of one run, but a sweep has several runs: "
    "use `python -m microp.run -m ...`, which starts the ranks of each point itself"
)
