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
from microp.app import config_checks, terminal
from microp.app.config import SimulateConfig, compose_config, read_config
from microp.app.errors import RunError
from microp.app.pricing import Price
from microp.app.pricing_job import make_pricing_job
from microp.app.sweep import SweepCallback, board, run_point
from microp.simulator import replay, schedule_of
from microp.store import load_steps, read_json, read_spans, read_summary, spans_frame

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A finished run, read from its files.

    Args:
        folder: the attempt's folder, `outputs/runs/<run>/attempt-<n>`.
    """

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

    def draw(self, path: Path | str | None = None) -> str:
        """Return the last measured step as text, replayed above measured.

        Args:
            path: if given (without ending), the timelines are also written there as SVG and PNG.
        """
        spans = read_spans(self.folder)
        panels = {"replayed": replay(schedule_of(spans, self.summary["schedule"]), spans), "measured": spans}
        if path is not None:
            trace.figure(panels, self.summary["run_id"], Path(path))
        return "\n\n".join(f"{name}\n{trace.text(each)}" for name, each in panels.items())


def measure(*overrides: str) -> Run:
    """Compose, check and run one point on real processes, and return its run.

    Args:
        overrides: as on the command line of a run, e.g. `"schedule=1f1b", "chunks=8"`.

    Raises:
        ConfigError: the configuration is wrong and nothing was started; its `problems` lists all problems.
        RunError: a rank failed; the message says which one, at which action and step.
    """
    config = compose_config(*overrides)
    point = read_config(config)
    job = SweepCallback.check(point)
    for warning in config_checks.warnings(point, job):
        warnings.warn(warning, stacklevel=2)
    if terminal.err.is_terminal:  # a notebook gets no bar
        board.open([len(list(job.phases()))])
    try:
        folder = run_point(config)
    finally:
        board.close()
    assert folder is not None  # a single point always runs
    status = read_json(folder / "status.json")
    if status["status"] != "finished":
        raise RunError(f"{status['message']} (see {folder})")
    return Run(folder)


def price(*overrides: str) -> Price:
    """Compose, check and simulate one point, and return its price.

    Args:
        overrides: as on the command line of `microp.simulate`, e.g. `"schedule=zb_h1", "costs.forward=2"`.

    Raises:
        ConfigError: the configuration is wrong; its `problems` lists all problems.
    """
    config = read_config(compose_config(*overrides, name="simulate"))
    assert isinstance(config, SimulateConfig)
    return Price(make_pricing_job(config))
