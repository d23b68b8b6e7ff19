"""The Python interface, for notebooks and scripts.

::

    microp.measure("schedule=1f1b", "chunks=8")  ─► Run     runs it on real processes, records it
    microp.price("schedule=1f1b", "chunks=8")    ─► Price   simulates it

The overrides are those of the command line.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microp import trace
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
    read_config,
)
from microp.records import LockedError, read_json, read_spans, read_summary, read_traced_step
from microp.results import load_runs, load_steps, spans_frame
from microp.sweep import board, run_attempt
from microp.terminal import console

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConfigError", "Price", "Run", "RunError", "load_runs", "measure", "price"]


class Run:
    """A finished run, read from the files of its attempt, `outputs/runs/<run>/attempt-<n>`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        step = self.summary["step_ms"]["median"]
        return f"<run {self.summary['run_id']}: step {step:.1f} ms, bubble {self.summary['bubble']['measured']:.3f}>"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The numbers of the whole run."""
        return read_summary(self.folder)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step and rank."""
        return load_steps(self.folder)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """The trace of the last measured step: one row per action, moments in milliseconds from the first start."""
        return spans_frame(read_spans(self.folder), 1e6, "_ms")

    def draw(self, path: Path | str | None = None, columns: int = 100) -> str:
        """Return the last measured step as text, replayed above measured.

        Args:
            path: if given (without ending), the timelines are also written there as SVG and PNG.
            columns: the width of the text, in characters.

        Raises:
            ValueError: the run has no trace.
        """
        step = read_traced_step(self.folder, self.summary)
        if step is None:
            raise ValueError(f"{self.folder} has an empty trace: run its command again")
        if path is not None:
            trace.figure(step.panels, self.summary["run_id"], Path(path), sums=step.sums)
        predicted, replicas = self.summary.get("predicted"), self.summary["replicas"]
        return trace.plain(trace.timeline(step.panels, columns, sums=step.sums, predicted=predicted, replicas=replicas))


def measure(*overrides: str, folder: Path | str | None = None) -> Run:
    """Compose, check and run one point on real processes, and return its run.

    Args:
        overrides: as on the command line of a run, e.g. `"schedule=1f1b", "chunks=8"`.
        folder: of your own models and schedules, `-cd` on the command line: it has `model/NAME.yaml` for `model=NAME`.

    Raises:
        ConfigError: the configuration is wrong and nothing was started; its `problems` lists all problems.
        RunError: a rank failed, and the message says which one, at which action and step; or another process runs this.
    """
    point = read_config(compose_config(*overrides, folder=folder))
    if point.skip:
        raise ConfigError([NOTHING_LEFT])
    if point.dry_run:
        raise ConfigError(["dry_run=true is for the command line: leave it out, or use price for a predicted time"])
    job = make_job(point)
    if problems := config_checks.only_in_a_sweep(point) + nothing_to_resume(point, job):
        raise ConfigError(problems)
    for warning in config_checks.warnings(point, job):
        warnings.warn(warning, stacklevel=2)
    if console.err.is_terminal:  # a notebook gets no bar
        board.open([len(list(job.phases()))])
    try:
        attempt = run_attempt(point, job, overrides)
    except LockedError as error:
        raise RunError(str(error)) from error
    finally:
        board.close()
    status = read_json(attempt / "status.json")
    if status["status"] != "finished":
        raise RunError(f"{status['message']} (see {attempt})")
    return Run(attempt)


def price(*overrides: str, folder: Path | str | None = None) -> Price:
    """Compose, check and simulate one point, and return its price.

    Args:
        overrides: as on the command line of `microp.simulate`, e.g. `"schedule=zb_h1", "costs.forward=2"`.
        folder: of your own models and schedules, as for `measure`.

    Raises:
        ConfigError: the configuration is wrong; its `problems` lists all problems.
    """
    config = read_config(compose_config(*overrides, name="simulate", folder=folder))
    assert isinstance(config, SimulateConfig)
    return Price(make_pricing_job(config))
