"""What a sweep of runs needs around its points: the plan, the progress, the table.

::

    outputs/sweeps/<time>_<name>/  plan.json   what was asked, and the runs that answer it
                                   table.csv   their summaries, a row a point
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from microp import launch, terminal
from microp.config import Config, make_plan, read, run_id
from microp.point import run_point
from microp.points import PointsCallback, loud, refuse, speaks
from microp.records import attempts, read_json, write_json
from microp.rules import validate, warn

board = terminal.Board()  # one a process: Hydra makes the callback and calls `run` apart from each other


def run(config: DictConfig) -> None:
    """Hydra's task: run one point."""
    run_point(read(config), board)


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
        write_json(self._folder / "plan.json", {"command": sys.argv, "points": self._run_ids})

    @loud
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        pd.json_normalize(self._summaries()).to_csv(self._folder / "table.csv", index=False)
        super().on_multirun_end(config)

    def begin(self, config: DictConfig, configs: list[Config]) -> None:
        self._run_ids = [run_id(point) for point in configs]
        self._output, self._tracking = Path(config.output_dir), config.tracking.mode
        self._before = set(attempts(self._output / "runs"))
        if speaks():
            board.open([len(list(make_plan(point).phases())) for point in configs])
            for warning in dict.fromkeys(text for point in configs for text in warn(point)):
                terminal.warn(warning)

    def end(self, config: DictConfig) -> None:
        if not speaks():
            return
        board.close()
        summaries = self._summaries()
        terminal.show(summaries, self._output, self._tracking)
        if any(summary["status"] != "finished" for summary in summaries) or not summaries:
            raise SystemExit(1)

    def _summaries(self) -> list[dict[str, Any]]:
        """The summaries of the attempts made since `begin`, in the order of the points."""
        runs = self._output / "runs"
        fresh = [
            attempt
            for name in dict.fromkeys(self._run_ids)
            for attempt in attempts(runs / name)
            if attempt not in self._before and (attempt / "summary.json").exists()
        ]
        return [
            {
                **read_json(attempt / "summary.json"),
                "folder": str(attempt),
                "message": read_json(attempt / "status.json")["message"],
            }
            for attempt in fresh
        ]


ONE_RUN_ONLY = (
    "torchrun starts the ranks of one run, and -m asks for several: "
    "use `python -m microp.run -m ...`, which starts the ranks of each point itself"
)
