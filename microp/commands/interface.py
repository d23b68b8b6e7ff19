"""The Python interface, for notebooks and scripts.

::

    microp.measure(schedule="1f1b", chunks=8)                  ─► Run     runs it on real processes, records it
    microp.sweep(schedule=["gpipe", "1f1b"], chunks=[4, 8])    ─► frame   the same for each combination, a row each
    microp.price("schedule=1f1b", "chunks=8")                  ─► Price   simulates it

What is asked is given as keys, or as the words of the command line, or both.
"""

from __future__ import annotations

import warnings
from datetime import datetime
from functools import cached_property
from html import escape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microp import records, results, trace
from microp.commands.pricing import Price
from microp.config import (
    NOTHING_LEFT,
    ConfigError,
    RunError,
    SimulateConfig,
    compose_config,
    config_checks,
    make_job,
    make_pricing_job,
    nothing_to_resume,
    plain,
    read_config,
)
from microp.points import Planned, board, finished_points, plan_sweep, run_attempt, write_points
from microp.results import load_steps, spans_frame, unscaled
from microp.system import flatten, override
from microp.terminal import console

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConfigError", "Price", "Run", "RunError", "load_runs", "measure", "price", "sweep"]

RESULTS = ("disturbed", "peak_memory_mib", "bubble.measured", "step_ms.median")  # last: pandas prints both ends


class Run:
    """A finished run, read from the files of an attempt.

    Args:
        folder: the attempt's, `outputs/runs/<run>/attempt-<n>`, or the run's, `outputs/runs/<run>`: its newest attempt.

    Raises:
        ConfigError: the folder is no run, or its attempt has no summary or cannot be read.
    """

    def __init__(self, folder: Path | str) -> None:
        made = [attempt for attempt in records.attempts(Path(folder)) if Path(folder) in (attempt, attempt.parent)]
        if not made:
            raise ConfigError([f"{folder} is no run: give outputs/runs/<run>, or one of its attempts"])
        self.folder = made[-1]
        try:
            status, _, self._env, summary = records.check_attempt(self.folder)
        except records.RecordError as error:
            raise ConfigError([str(error)]) from error
        if summary is None:
            raise ConfigError([f"{self.folder} is {status['status']} and has no summary: run its command again"])
        self.summary: dict[str, Any] = summary  # the numbers of the whole run

    def __repr__(self) -> str:
        step = self.summary["step_ms"]["median"]
        bubble, doubt = self.summary["bubble"]["measured"], ", disturbed" * self.disturbed
        return f"<run {self.summary['run_id']}: step {step:.1f} ms, bubble {bubble:.3f}{doubt}>"

    def _repr_html_(self) -> str:
        step = records.read_traced_step(self.folder, self.summary)
        shown = step and step.marked(self.disturbed)
        drawing = trace.svg(shown.panels, self.summary["run_id"], sums=shown.sums) if shown else ""
        return f"{escape(repr(self))}<br>{drawing}"

    @property
    def disturbed(self) -> bool:
        """Whether something disturbed its timing, so that its times are not to be trusted."""
        return bool(self.disturbed_by)

    @cached_property
    def disturbed_by(self) -> str:
        """What disturbed its timing, as `load 9.1`; empty if nothing did."""
        return ", ".join(why.text for why in records.disturbances(self.summary, self._env))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step and rank."""
        return load_steps(self.folder)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """The trace of the last measured step: one row per action, moments in milliseconds from the first start."""
        return spans_frame(records.read_spans(self.folder), 1e6, "_ms")

    def draw(self, path: Path | str | None = None, columns: int = 100) -> str:
        """Return the last measured step as text, replayed above measured.

        Args:
            path: if given (without ending), the timelines are also written there as SVG, PDF and PNG.
            columns: the width of the text, in characters.

        Raises:
            ValueError: the run has no trace.
        """
        step = records.read_traced_step(self.folder, self.summary)
        if step is None:
            raise ValueError(f"{self.folder} has an empty trace: run its command again")
        if path is not None:
            shown = step.marked(self.disturbed)
            trace.figure(shown.panels, self.summary["run_id"], Path(path), sums=shown.sums)
        predicted, replicas = self.summary.get("predicted"), self.summary["replicas"]
        lines = trace.timeline(step.panels, columns, sums=step.sums, predicted=predicted, replicas=replicas)
        return trace.plain(lines) + f"\ndisturbed: {self.disturbed_by}" * self.disturbed


def load_runs(folder: Path | str) -> pd.DataFrame:
    """Return one row per run below `folder`: its newest finished attempt, or else its newest attempt.

    Nested keys are joined by dots, as `step_ms.median` and `config.model.dim`, and integers stay integers where some
    are missing. Runs that cannot be read are left out with a warning; `frame.attrs["unreadable"]` lists why, one
    sentence each.

    Raises:
        ConfigError: there is no such folder.
    """
    if not Path(folder).is_dir():
        raise ConfigError([f"{folder} is not a folder: give outputs, or the output_dir of the runs"])
    return results.load_runs(Path(folder))


def measure(*overrides: str, folder: Path | str | None = None, **keys: Any) -> Run:
    """Compose, check and run one point on real processes, and return its run.

    Args:
        overrides: as on the command line of a run, e.g. `"schedule=1f1b", "model.dim=64"`.
        folder: of your own models and schedules, `-cd` on the command line: it has `model/NAME.yaml` for `model=NAME`.
        keys: the same as keys, e.g. `schedule="1f1b", model={"dim": 64}`.

    Raises:
        ConfigError: the configuration is wrong and nothing was started; its `problems` lists all problems.
        RunError: a rank failed, and the message says which one, at which action and step; or another process runs this.
    """
    asked = _checked([*overrides, *_words(keys)], folder)
    if problems := config_checks.only_in_a_sweep(asked.config) + nothing_to_resume(asked.config, asked.job):
        raise ConfigError(problems)
    attempt = _run([asked])[0]
    status = records.read_json(attempt / "status.json")
    if status["status"] != "finished":
        raise RunError(f"{status['message']} (see {attempt})")
    return Run(attempt)


def sweep(*overrides: str, folder: Path | str | None = None, **keys: Any) -> pd.DataFrame:
    """Check and run every combination of the keys' values, one after the other, and return a row per combination.

    ::

        microp.sweep(schedule=["gpipe", "1f1b"], chunks=[4, 8])     4 rows, with the columns of `load_runs`:
                                                                    the keys first, the results last

    As in a sweep of the command line a run that has finished is not run again (`again=True` does), and a failed one
    costs its row alone: its `status` is "failed", and its `message` says why. The report and `analysis.sweep` draw it
    like one, from its folder in `outputs/sweeps`. Where nominal times do not compare, a warning says so.

    Args:
        overrides: words that are the same for all points, as for `measure`.
        folder: as for `measure`.
        keys: as for `measure`; a list has the values that are swept, and a tuple is one value.

    Raises:
        ConfigError: a point is wrong and nothing was started; its `problems` lists those of all points.
        RunError: another process runs one of the points.
    """
    flat = flatten(keys)
    values = [value if isinstance(value, list) else [value] for value in flat.values()]
    points, problems = dict[str, Planned](), dict[str, None]()
    for combination in product(*values):
        try:
            asked = _checked([*overrides, *map(override, flat, combination)], folder)
            points.setdefault(asked.job.run_id, asked)  # equal points are one run
        except ConfigError as error:
            hint = "for microp.sweep a list is several values, a tuple is one"
            problems |= dict.fromkeys(text.replace("a list is written [VALUE]", hint) for text in error.problems)
    places = {point.config.output_dir for point in points.values()}
    if problems or len(places) > 1:
        raise ConfigError([*problems] or ["output_dir: a sweep has one folder for its runs: give one"])
    if reason := unscaled(plain(point.config) for point in points.values()):
        warnings.warn(reason, stacklevel=2)
    if not points:
        return load_runs(".").head(0)
    output, again = Path(places.pop()), any(point.config.again for point in points.values())
    waiting = [point for point in points.values() if not point.finished(again)]
    if done := len(points) - len(waiting):
        console.note(finished_points(done, len(points)))
    begun = f"{datetime.now():%Y-%m-%d_%H-%M-%S}_config"
    plan = plan_sweep(output / "sweeps" / begun, "config", [point.record() for point in points.values()], again)
    try:
        _run(waiting)
    finally:
        write_points(plan.folder, points, again)
    runs = load_runs(output)
    swept = [key if key in runs else f"config.{key}" for key, value in zip(flat, values, strict=True) if len(value) > 1]
    last = [name for name in RESULTS if name in runs]
    runs = runs[[*dict.fromkeys([*swept, "status", *runs.columns.drop(last), *last])]]
    order = {name: number for number, name in enumerate(points)}
    return runs[runs["run_id"].isin(order)].sort_values("run_id", key=lambda ids: ids.map(order), ignore_index=True)


def _words(keys: dict[str, Any]) -> list[str]:
    return [override(key, value) for key, value in flatten(keys).items()]


def _checked(words: list[str], folder: Path | str | None) -> Planned:
    point = read_config(compose_config(*words, folder=folder))
    if point.skip:
        raise ConfigError([NOTHING_LEFT])
    if point.dry_run:
        raise ConfigError(["dry_run=true is for the command line: leave it out, or use price for a predicted time"])
    return Planned.now(words, point, make_job(point))


def _run(points: list[Planned]) -> list[Path]:
    """Run points with their progress, and return their attempts."""
    for warning in dict.fromkeys(text for point in points for text in config_checks.warnings(point.config, point.job)):
        warnings.warn(warning, stacklevel=3)
    board.open([len(list(point.job.phases())) for point in points])
    try:
        return [run_attempt(point) for point in points]
    except records.LockedError as error:
        raise RunError(str(error)) from error
    finally:
        board.close()


def price(*overrides: str, folder: Path | str | None = None, **keys: Any) -> Price:
    """Compose, check and simulate one point, and return its price.

    Args:
        overrides: as on the command line of `microp.simulate`, e.g. `"schedule=zb_h1", "costs.forward=2"`.
        folder: of your own models and schedules, as for `measure`.
        keys: the same as keys, as for `measure`.

    Raises:
        ConfigError: the configuration is wrong; its `problems` lists all problems.
    """
    config = read_config(compose_config(*overrides, *_words(keys), name="simulate", folder=folder))
    assert isinstance(config, SimulateConfig)
    return Price(make_pricing_job(config))
