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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from microp.app import config_checks
from microp.app.config import plain, read_config, tracking_of
from microp.app.errors import RunError
from microp.app.hydra_callbacks import (
    Point,
    PointsCallback,
    chooses_points,
    config_name,
    is_sweep,
    loud,
    overrides,
    refuse,
    speaks,
    sweep_folder,
)
from microp.app.job_factory import make_job
from microp.app.next_commands import print_next_commands
from microp.app.schema import Config
from microp.job import Job
from microp.settings import is_joined
from microp.store import (
    SCHEMA_VERSION,
    RecordError,
    attempts,
    flatten,
    read_json,
    read_status,
    read_summary,
    write_json,
)
from microp.terminal import Board, Row, console, read_row, show_runs, step_drawing, write_csv

board = Board()  # global, because Hydra creates the callback that shares it with `run_point`
_open: list[SweepCallback] = []  # the sweep that has been planned and has not ended


def run_point(config: DictConfig) -> float:
    """Run one point, unless it is a finished point of a sweep; this is Hydra's task function.

    Returns:
        the objective, which a sweeper may minimise: the median step time in milliseconds. NaN if nothing was measured.

    Raises:
        RunError: the point was not measured, and the sweeper needs to know that it failed.
    """
    point, folder = read_config(config), sweep_folder()
    if folder is not None and point.skip:
        return _failed("skip=true leaves this point out")
    job: Job = SweepCallback.take(point)
    attempt = None
    if folder is not None:
        since = read_json(folder / "plan.json")["since"]
        attempt = finished(Path(point.output_dir) / "runs" / job.run_id, since)
    return _objective(attempt or run_attempt(point, job, overrides(), experiment_of(config_name())))


def run_attempt(point: Config, job: Job, typed: Sequence[str], experiment: str | None = None) -> Path:
    """Run one point and return the attempt's folder; the failure of a rank is recorded there.

    Args:
        point: the configuration.
        job: the job of that configuration.
        typed: the overrides that were typed for it.
        experiment: the name of the stored sweep that it belongs to, if any.

    Raises:
        RankError: a rank failed, and torchrun started this process.
    """
    from microp.app.attempt import Attempt, run_as_rank
    from microp.worker import launch_ranks, run_threads  # torch takes a second, too slow for --help and TAB

    if is_joined():
        return run_as_rank(point, job, experiment, typed)
    run = run_threads if job.backend == "threads" else launch_ranks
    steps = len(list(job.phases()))
    opened = Attempt(point, job, experiment, typed)
    with opened as attempt, board.point(job.run_id, steps, attempt / "steps.rank0.jsonl"):
        run(job, attempt, point.launch.shutdown_s)
    return attempt


def _objective(attempt: Path) -> float:
    if not (attempt / "summary.json").exists():  # this process is a rank on another host
        return float("nan")
    status = read_status(attempt)
    if status["status"] != "finished":
        return _failed(f"{attempt}: {status.get('message')}")
    return float(read_summary(attempt)["step_ms"]["median"])


def _failed(reason: str) -> float:
    """Return NaN for a point without a figure; for a sweeper that chooses its points raise RunError."""
    if chooses_points():
        raise RunError(reason)
    return float("nan")


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

    def problems_together(self, points: list[Point]) -> list[str]:
        folders = list(dict.fromkeys(point.config.output_dir for point in points))
        return [] if len(folders) < 2 else [f"output_dir={','.join(folders)}: {ONE_FOLDER}"]

    @classmethod
    def take(cls, config: Config) -> Job:
        job: Job = super().take(config)
        for sweep in _open:
            sweep.join(Point(overrides(), config, job))
        return job

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if is_joined():
            refuse([ONE_RUN_ONLY])
        super().on_multirun_start(config)
        self._folder = Path(config.hydra.sweep.dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = config.hydra.job.config_name
        self._write_plan()
        self.write_table()
        _open.append(self)

    def _write_plan(self) -> None:
        points = [{"run_id": run_id, "overrides": point.overrides} for run_id, point in self._points.items()]
        plan = {
            "schema_version": SCHEMA_VERSION,
            "name": self._name,
            "experiment": experiment_of(self._name) or self._name,
            "command": sys.argv,
            "since": self._since,
            "points": points,
        }
        write_json(self._folder / "plan.json", plan)

    def join(self, point: Point) -> None:
        """Add a point that the sweeper has chosen only now to the plan; nothing changes for one that was planned."""
        if point.made.run_id in self._points:
            return
        self._points[point.made.run_id] = point
        self._write_plan()
        if speaks() and not self._finished(point.made.run_id):
            board.add(len(list(point.made.phases())))
            for warning in config_checks.warnings(point.config, point.made):
                console.warn(warning)

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        close()
        super().on_multirun_end(config)

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        self._points: dict[str, Point] = {}
        for point in points:
            self._points.setdefault(point.made.run_id, point)  # equal points are one run
        self._output, self._tracking = Path(config.output_dir), tracking_of(config)
        self._began = time.time()
        self._since = 0.0 if is_sweep(config) and not config.again else self._began
        waiting = [point for name, point in self._points.items() if not self._finished(name)]
        if speaks():
            board.open([len(list(point.made.phases())) for point in waiting])
            texts = [text for point in waiting for text in config_checks.warnings(point.config, point.made)]
            for warning in dict.fromkeys(texts):
                console.warn(warning)
            if len(self._points) < len(points):
                console.note(_equal_points(points, len(self._points)))
            if done := len(self._points) - len(waiting):
                console.note(f"{done} of {len(self._points)} points are finished already; again=true runs them again")

    def end(self, config: DictConfig) -> None:
        if not speaks():
            return
        board.close()
        rows = self._rows()
        show_runs(rows, str(self._folder / "table.csv") if is_sweep(config) else "summary.json")
        if len(rows) == 1:
            step_drawing.show(rows[0].folder, rows[0].summary)
        done = [row.folder for row in rows if row.summary["status"] == "finished"]
        print_next_commands(self._output, self._tracking.reachable(), done[-1] if done else None)
        if len(done) < max(1, len(self._points)):
            raise SystemExit(1)

    def write_table(self) -> None:
        """Write table.csv with one row per planned point; one that has not been run has only what was asked."""
        points = {name: (plain(point.config), point.overrides) for name, point in self._points.items()}
        write_csv(self._folder / "table.csv", points, self._rows())

    def _finished(self, name: str) -> Path | None:
        return finished(self._output / "runs" / name, self._since)

    def _rows(self) -> list[Row]:
        """Return one row per point, in order: of its finished attempt, else of its attempt by this command."""
        attempts = {name: self._finished(name) or self._last_made(name) for name in self._points}
        return [
            read_row(plain(self._points[name].config), self._points[name].overrides, attempt)
            for name, attempt in attempts.items()
            if attempt is not None
        ]

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


def _equal_points(points: list[Point], runs: int) -> str:
    """Return how many runs these points are, and which of their keys are no part of what a run is asked."""
    first: dict[str, Point] = {}
    keys: set[str] = set()
    for point in points:
        run = flatten(plain(first.setdefault(point.made.run_id, point).config))
        keys |= {key for key, value in flatten(plain(point.config)).items() if run.get(key) != value}
    said = f"{len(points)} points are {runs} run{'s' if runs > 1 else ''}"
    if not keys:
        return f"{said}: equal points are run once"
    *others, last = sorted(keys)
    named = f"{', '.join(others)} and {last} are" if others else f"{last} is"
    return f"{said}: {named} no part of a run's question, so only the first of such points is run"


ONE_FOLDER = (
    "a sweep has one folder for its plan, its table and its runs: give one output_dir, or run one sweep for each"
)
ONE_RUN_ONLY = (
    "torchrun starts the ranks of one run, but a sweep has several runs: "
    "use `python -m microp.run -m ...`, which starts the ranks of each point itself"
)
