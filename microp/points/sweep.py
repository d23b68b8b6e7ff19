"""Plans a command's points and shows their progress and their table; `points` runs them.

::

    outputs/sweeps/<time>_<name>/  plan.json     the command, and its runs with their overrides
                                   points.jsonl  each point as it was checked, which is what it runs
                                   table.csv     the summaries, one row per point, also of an interrupted sweep
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from microp import records
from microp.config import (
    Config,
    about_resumed,
    config_checks,
    lacks_profile,
    make_job,
    nothing_to_resume,
    plain,
    read_config,
)
from microp.job import Job
from microp.points import hydra_app
from microp.points.dry_run import show_dry_run
from microp.points.next_commands import print_next_commands
from microp.points.planned import (
    Planned,
    equal_points,
    experiment_of,
    finished_points,
    plan_sweep,
    planned,
    read_points,
    write_points,
)
from microp.points.point import SKIPPED
from microp.points.run import board
from microp.points.slurm_sweep import cancel_jobs
from microp.results import PointRow, unscaled
from microp.settings import changed_data
from microp.system import is_joined, override
from microp.terminal import console, show_runs, show_step

DIVERGED_CODE = 3  # exit code: points diverged, and all others finished


class SweepCallback(hydra_app.PointsCallback):
    """Makes the job of every point, shows the progress and the table; sets the exit code if points did not finish."""

    _plan: records.SweepPlan | None = None  # a single run has none
    _is_open = False  # whether a sweep has been planned and has not ended

    @classmethod
    def prepare(cls, config: Config) -> Job:
        return make_job(config)

    def problems_together(self, config: DictConfig, points: list[hydra_app.Point]) -> list[str]:
        folders = list(dict.fromkeys(point.config.output_dir for point in points))
        problems = []
        if len(folders) > 1:
            problems.append(
                f"output_dir={','.join(folders)}: a sweep has one folder for its plan, its table and its runs: "
                "give one output_dir, or run one sweep for each"
            )
        asks_for_one = any(word.startswith("hydra.mode=") for word in config.hydra.overrides.hydra)
        if config.hydra.sweeper.get("params") and not (hydra_app.is_sweep(config) or asks_for_one):
            problems.append(
                f"{config.hydra.job.config_name}.yaml has hydra.sweeper.params, but would be one run: add mode: "
                "MULTIRUN below hydra: in it, or type -m"
            )
        for key in ("dry_run", "fail_fast"):
            if len({getattr(point.config, key) for point in points}) > 1:
                problems.append(f"{key}=true,false: {key} is for all points of a sweep: give one value")
        if hydra_app.is_sweep(config) and not hydra_app.launches_in_turn(config.hydra.launcher):
            problems += dict.fromkeys(text for point in points for text in config_checks.beside_problems(point.config))
        for point in [] if hydra_app.is_sweep(config) else points:
            problems += config_checks.only_in_a_sweep(point.config)
            problems += nothing_to_resume(point.config, point.made)  # in a sweep it starts at its beginning
        return problems

    def dry_run(self, config: DictConfig, checked: list[hydra_app.Checked]) -> None:
        if hydra_app.speaks():
            show_dry_run(checked, len(self.skipped), resumes=hydra_app.is_sweep(config) and not config.again)

    @hydra_app.stop_on_error
    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        if is_joined():
            hydra_app.refuse(
                [
                    "torchrun starts the ranks of one run, but a sweep has several runs: use `python -m microp.run -m "
                    "...`, which starts the ranks of each point itself, or one torchrun command per run"
                ]
            )
        super().on_multirun_start(config)
        wanted, name = Path(config.hydra.sweep.dir), config.hydra.job.config_name
        self._plan = plan_sweep(wanted, name, self._records(), self._again)
        config.hydra.sweep.dir = folder = str(self._plan.folder)  # where Hydra looks for it, and every point
        config.hydra.overrides.hydra.append(override("hydra.sweep.dir", folder))
        self.write_table()
        self._is_open = True

    def _records(self) -> Iterator[dict[str, Any]]:
        """Yield the points of the plan, then those that are left out; of equal points the first is run."""
        for point in self._points.values():
            yield point.record()
        runs = {tuple(point.overrides) for point in self._points.values()}
        for overrides in self._all:
            if tuple(overrides) not in runs:
                yield {"overrides": overrides, "left_out": "an earlier point of this sweep asks the same"}
        for overrides in self.skipped:
            yield {"overrides": overrides, "left_out": SKIPPED}

    @hydra_app.stop_on_error
    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        self._is_open = False
        self.write_table()
        super().on_multirun_end(config)

    def close(self) -> bool:
        board.close()
        cancel_jobs()
        if not self._is_open:
            return False
        self._is_open = False
        if rows := self.show_rows():
            self._show_next(rows)
        try:
            self.write_table()
        except OSError as error:
            console.warn(records.in_a_line(error))
        return True

    def begin(self, config: DictConfig, points: list[hydra_app.Point]) -> None:
        self._points: dict[str, Planned] = {}
        self._experiment, self._output = experiment_of(config.hydra.job.config_name), Path(config.output_dir)
        for point in points:  # equal points are one run
            self._points.setdefault(point.made.run_id, Planned.now(*point, self._experiment))
        self._all = [point.overrides for point in points]
        self._again = not hydra_app.is_sweep(config) or config.again
        self._tracking = read_config(config).tracking
        self._is_first = not any(Path(config.output_dir, "runs").glob("*"))
        waiting = [point for name, point in self._points.items() if not self._finished(name)]
        if hydra_app.speaks():
            board.open([len(list(point.job.phases())) for point in waiting])
            texts = [text for point in waiting for text in config_checks.warnings(point.config, point.job)]
            for warning in dict.fromkeys(texts):
                console.warn(warning)
            notes = about_resumed([point.job for point in waiting])
            notes += filter(None, [unscaled(plain(point.config) for point in self._points.values())])
            if len(self._points) < len(points):
                notes.append(equal_points(len(points), len(self._points)))
            for note in notes:
                console.note(note)
            if done := len(self._points) - len(waiting):
                console.note(finished_points(done, len(self._points)))
                for text in self._changed_data():
                    console.warn(f"{text}: with again=true all points run on what it holds now")

    def _changed_data(self) -> list[str]:
        """Return which data are not those any more that finished points were trained on, one sentence per path."""
        read, now = list[tuple[str | None, dict[str, Any]]](), dict[str | None, str | None]()
        for name, point in self._points.items():
            if attempt := self._finished(name):
                path = getattr(point.config.data, "path", None)
                read.append((path, records.read_env(attempt)))
                now[path] = point.config.data.contents()
        return changed_data(read, now)

    def end(self, config: DictConfig) -> None:
        if not hydra_app.speaks():
            return
        board.close()
        self._add_chosen()
        rows = self.show_rows()
        if len(rows) == 1:
            show_step(rows[0].folder, rows[0].summary)
        done = self._show_next(rows)
        texts = (lacks_profile(point.config, point.job) for point in self._points.values() if self._is_first)
        if hint := next(filter(None, texts), None):  # once in an output folder
            console.note(hint)
        doubts = (config_checks.prediction_doubts(point.config, point.job) for point in self._points.values())
        for doubt in next(filter(None, doubts), []):
            console.warn(doubt)
        shown = {row.summary["run_id"] for row in rows}
        if lost := sorted(str(point.run) for name, point in self._points.items() if name not in shown):
            count = f"{len(lost)} of {len(self._points)} points"
            console.error(f"no result of {count}, removed or damaged: {', '.join(lost)}: run the same command again")
        diverged = sum(row.summary["status"] == records.DIVERGED for row in rows)
        if (others := max(1, len(self._points)) - len(done)) > 0:
            raise SystemExit(DIVERGED_CODE if others == diverged else 1)

    def _show_next(self, rows: list[PointRow]) -> list[PointRow]:
        """Print what to type next, and return the rows of what has finished."""
        done = [row for row in rows if row.summary["status"] == "finished"]
        sweep = (self._experiment or "") if self._plan else None
        folder = self._plan.folder if self._plan else Path()
        print_next_commands(self._output, self._tracking.reachable(), done, sweep, folder)
        return done

    def show_rows(self) -> list[PointRow]:
        """Print the table of the points that have a summary and return its rows."""
        rows = read_points(self._points.values(), self._again)
        if rows:  # else every failure has been shown
            show_runs(rows, str(self._plan.folder / "table.csv") if self._plan else "summary.json")
        if len(rows) > 1:
            for text in changed_data((row.config["data"].get("path"), row.env) for row in rows):
                console.warn(text)
        return rows

    def write_table(self) -> None:
        """Write table.csv with one row per planned point."""
        assert self._plan is not None, "a single run has no table.csv"
        self._add_chosen()
        write_points(self._plan.folder, self._points, self._again)

    def _add_chosen(self) -> None:
        """Add the points that a sweeper has chosen since the start, which may have been in other processes."""
        for record in self._plan.points() if self._plan else ():
            if (name := record.get("run_id")) is not None and name not in self._points:
                self._points[name] = planned(record)

    def _finished(self, name: str) -> Path | None:
        return self._points[name].finished(self._again)
