"""What a sweep of runs needs around its points: the plan, what is there already, the progress, the table.

::

    outputs/sweeps/<time>_<name>/  plan.json   what was asked, and the runs that answer it, with their overrides
                                   table.csv   their summaries, a row a point, also of a sweep that was interrupted

    point ── a finished attempt is there? ── yes ─► its numbers
                                          ── no ──► run it
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from microp import launch, terminal
from microp.config import Config, make_plan, read, run_id
from microp.point import run_point
from microp.points import Point, PointsCallback, config_name, is_sweep, loud, refuse, speaks, sweep_folder
from microp.records import attempts, read_json, write_json
from microp.rules import validate, warn

board = terminal.Board()  # one a process: Hydra makes the callback and calls `run` apart from each other
_open: list[SweepCallback] = []  # the sweep that has been planned and has not come to its end


def run(config: DictConfig) -> None:
    """Hydra's task: run one point; in a sweep only one that is asked for and not there."""
    point, folder = read(config), sweep_folder()
    if folder is not None:
        since = read_json(folder / "plan.json")["since"]
        if point.skip or finished(Path(point.output_dir) / "runs" / run_id(point), since):
            return
    run_point(point, board, experiment_of(config_name()))


def finished(run: Path, since: float) -> Path | None:
    """The last attempt of a run that was started after `since` (seconds since 1970) and has finished."""
    for attempt in reversed(attempts(run)):
        status = read_json(attempt / "status.json")
        if status["status"] == "finished" and status["started"] >= since:
            return attempt
    return None


def close() -> None:
    """The command ends, however that came about: the bar goes, and a sweep that was stopped leaves its table."""
    board.close()
    while _open:
        _open.pop().write_table()


class SweepCallback(PointsCallback):
    """Validates every point, shows the progress, and ends with the table; exit code 1 if a point failed."""

    def problems_of(self, config: Config) -> list[str]:
        return validate(config)

    @loud
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if launch.joins():
            refuse([ONE_RUN_ONLY])
        super().on_multirun_start(config)
        self._folder = Path(config.hydra.sweep.dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = config.hydra.job.config_name
        points = [{"run_id": run_id, "overrides": point.overrides} for run_id, point in self._points.items()]
        plan = {"name": name, "experiment": experiment_of(name) or name, "command": sys.argv, "since": self._since}
        write_json(self._folder / "plan.json", {**plan, "points": points})
        self.write_table()
        _open.append(self)

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        close()
        super().on_multirun_end(config)

    def begin(self, config: DictConfig, points: list[Point]) -> None:
        self._points: dict[str, Point] = {}
        for point in points:
            self._points.setdefault(run_id(point.config), point)  # of two that ask the same the first
        self._output, self._tracking = Path(config.output_dir), config.tracking.mode
        self._began = time.time()
        self._since = 0.0 if is_sweep(config) and not config.again else self._began
        waiting = [point.config for name, point in self._points.items() if not self._finished(name)]
        if speaks():
            board.open([len(list(make_plan(point).phases())) for point in waiting])
            for warning in dict.fromkeys(text for point in waiting for text in warn(point)):
                terminal.warn(warning)
            if there := len(self._points) - len(waiting):
                terminal.note(f"{there} of {len(self._points)} points are there already; again=true runs them again")

    def end(self, config: DictConfig) -> None:
        if not speaks():
            return
        board.close()
        summaries = self._summaries()
        terminal.show(summaries, self._output, self._tracking)
        if any(summary["status"] != "finished" for summary in summaries) or len(summaries) < max(1, len(self._points)):
            raise SystemExit(1)

    def write_table(self) -> None:
        """A row a point of the plan; one that has not been run has only its name and what was asked."""
        rows = {summary["run_id"]: summary for summary in self._summaries()}
        planned = {name: {"run_id": name, "status": "planned"} for name in self._points}
        pd.json_normalize(list((planned | rows).values())).to_csv(self._folder / "table.csv", index=False)

    def _finished(self, name: str) -> Path | None:
        return finished(self._output / "runs" / name, self._since)

    def _summaries(self) -> list[dict[str, Any]]:
        """The summaries that answer the points, in their order: of a finished attempt, else of one made now."""
        found = []
        for name in self._points:
            attempt = self._finished(name) or self._last_made(name)
            if attempt is not None:
                message = read_json(attempt / "status.json")["message"]
                found.append({**read_json(attempt / "summary.json"), "folder": str(attempt), "message": message})
        return found

    def _last_made(self, name: str) -> Path | None:
        made = [
            attempt
            for attempt in attempts(self._output / "runs" / name)
            if (attempt / "summary.json").exists() and read_json(attempt / "status.json")["started"] >= self._began
        ]
        return made[-1] if made else None


def experiment_of(name: str) -> str | None:
    """The experiment a stored sweep belongs to: `m_sensitivity_quick` asks for a part of `m_sensitivity`.

    None for the points of a command that names no stored sweep.
    """
    return None if name == "config" else name.removesuffix("_quick")


ONE_RUN_ONLY = (
    "torchrun starts the ranks of one run, and -m asks for several: "
    "use `python -m microp.run -m ...`, which starts the ranks of each point itself"
)
