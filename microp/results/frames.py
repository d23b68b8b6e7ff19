"""Reads the files of runs and sweeps as data frames.

::

    outputs/runs/<run id>/attempt-<n>/    the newest finished attempt of each run is a row
    outputs/sweeps/*_<name>/plan.json     lists the runs of the experiment <name>

    row:  summary keys         schedule  chunks  step_ms.median  bubble.measured  ...
          configuration keys   config.device.name  config.repeat  ...
          environment keys     env.commit  env.processor  env.cores  ...
          question             the same name for all launches of one question
          folder               the folder of the attempt
          started, message     when it began, in seconds since 1970; why it failed
          disturbed[_by]       whether a finished run's timing was disturbed, and by what; see `disturbances`
    recorded             of a `Store`: the row as it was recorded, nested

If a point was planned again (the same overrides in a newer plan of the experiment), only its newer
run counts, so that rows of an older sweep are not mixed in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microp.job import LATER
from microp.records import (
    KILLED,
    Point,
    RecordError,
    attempts,
    check_attempt,
    command,
    disturbances,
    rank_of,
    read_plans,
    read_rows,
    row_files,
)
from microp.system import about_sweep, flatten, sweep_names
from microp.trace import MOMENTS, Span, Spans

if TYPE_CHECKING:  # ranks do not import pandas
    import pandas as pd

CLOSED_FORM = "bubble.closed_form"  # null in the summaries of orders that have none


def load_runs(folder: Path) -> pd.DataFrame:
    """Return the frame of `microp.load_runs`, without rows if there is no such folder."""
    rows, unreadable = read_runs(folder)
    if unreadable:
        number = "1 attempt is" if len(unreadable) == 1 else f"{len(unreadable)} attempts are"
        more = "" if len(unreadable) == 1 else ' (attrs["unreadable"] lists the other reasons)'
        warnings.warn(f"{number} left out: {unreadable[0]}{more}", stacklevel=3)
    frame = _with_integers(_frame(rows), [flatten(row) for row in rows])
    frame.attrs["unreadable"] = unreadable
    return frame


def _with_integers(frame: pd.DataFrame, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a frame of rows whose integers stay such: pandas makes floats of those of which some are missing."""
    for column in map(str, frame.select_dtypes(float)):
        if all(isinstance(row.get(column), int | None) for row in rows):
            frame[column] = frame[column].astype("Int64")
    return frame


def _frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    reasons = [(row, ", ".join(each.text for each in disturbances(row, row["env"]))) for row in rows]
    frame = pd.json_normalize([{**row, "disturbed": bool(why), "disturbed_by": why} for row, why in reasons])
    groups = {name.partition(".")[0] for name in map(str, frame) if "." in name}  # a row may lack all of `nominal`
    return frame.drop(columns=groups & {*frame})


def finished_runs(folder: Path) -> pd.DataFrame:
    """Return one row per finished run below `folder`; a frame without rows and columns if there is none."""
    return _finished(read_runs(folder)[0])


def _finished(rows: list[dict[str, Any]]) -> pd.DataFrame:
    finished: list[Any] = [row for row in rows if row["status"] == "finished"]
    frame = _frame(finished)
    frame["recorded"] = finished
    if CLOSED_FORM in frame:  # if no run has one, pandas has no reason to take it for a number
        frame[CLOSED_FORM] = frame[CLOSED_FORM].astype(float)
    return frame


def load_steps(attempt: Path) -> pd.DataFrame:
    """Return every row of every rank of one attempt.

    Raises:
        RecordError: a newer microp wrote the rows, or they cannot be read.
    """
    import pandas as pd

    ranks = map(rank_of, row_files(attempt, "steps"))
    rows = [row for rank in ranks for row in read_rows(attempt, rank)]
    return _with_integers(pd.DataFrame(rows), rows)


def spans_frame(spans: Spans, per_unit: float = 1, suffix: str = "") -> pd.DataFrame:
    """Return one row per span: rank, op, stage, microbatch, and its moments counted from the first start.

    `per_unit` and `suffix` turn moments into another unit: 1e6 and `_ms` make milliseconds of nanoseconds.
    """
    import pandas as pd

    frame = pd.DataFrame(list(spans), columns=list(Span._fields))
    moments = list(MOMENTS)
    frame[moments] = (frame[moments] - min(spans.start)).astype(float) / per_unit
    return frame.rename(columns={moment: moment + suffix for moment in moments})


def read_runs(
    folder: Path, every: bool = False, tell: Callable[[float], None] = lambda _: None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the nested rows of `load_runs` (or of `every` attempt), ordered by run, and why attempts are left out.

    An attempt that cannot be read is named, in one sentence, if its run has no newer one that finished. `tell` is told
    the share that is read.
    """
    rows, unreadable = [], []
    runs = [list(run) for _, run in groupby(attempts(folder), key=lambda attempt: attempt.parent.name)]
    for number, run in enumerate(runs):
        tell(number / len(runs))
        run_rows, reasons = _read_run(reversed(run), every)
        rows += run_rows
        unreadable += reasons
    return rows, unreadable


def _read_run(newest_first: Iterable[Path], every: bool) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    reasons = []
    for attempt in newest_first:
        try:
            rows.append(_row(attempt))
        except RecordError as error:
            reasons.append(str(error))
            continue
        if rows[-1]["status"] == "finished" and not every:
            return rows[-1:], reasons
    return rows if every else rows[:1], reasons


def _row(attempt: Path) -> dict[str, Any]:
    status, config, env, summary = check_attempt(attempt)
    origin = {
        "status": status["status"],
        "attempt": attempt.name,
        "folder": str(attempt),
        "started": status["started"],
        "message": status.get("message"),
        "config": {**LATER, **config},
        "env": env,
    }
    if summary is None:  # killed, or still running: of the measured steps, count those that every rank has recorded
        ranks = [read_rows(attempt, rank_of(path)) for path in row_files(attempt, "steps")]
        steps = min((sum(row["phase"] == "measured" for row in rows) for rows in ranks), default=0)
        return {"run_id": attempt.parent.name, "question": None, **origin, "steps": steps}
    return {**summary, "question": summary["question_id"], **origin}


# --- sweeps --------------------------------------------------------------------------------------


class Store:
    """The runs and sweeps of an outputs folder, which may be absent.

    Args:
        schedules: those whose runs count; empty for all.
        tell: is told the share of the runs that is read.

    Attributes:
        schedules: the same.
        rows: the nested rows of all runs that can be read, also of those that did not finish.
        plans: all sweeps that were started, oldest first.
        unreadable: why runs and sweeps are left out, one sentence each.
    """

    def __init__(
        self, outputs: Path, schedules: Collection[str] = (), tell: Callable[[float], None] = lambda _: None
    ) -> None:
        self.outputs, self.schedules = outputs, schedules
        self.rows, unreadable_runs = read_runs(outputs / "runs", tell=tell)
        self.plans, unreadable_plans = read_plans(outputs / "sweeps")
        self.unreadable = [*unreadable_runs, *unreadable_plans]
        self._finished = _finished(self.rows)

    def runs(self, name: str | None = None) -> pd.DataFrame:
        """Return one row per finished run of the experiment `name`, or of all experiments without a name.

        The frame has neither rows nor columns if there are no runs.
        """
        if name is None:
            return self.of(None)
        return self.of({point.run_id for point in self.points(name)}, with_alone=True)

    def of(self, run_ids: set[str] | None, with_alone: bool = False) -> pd.DataFrame:
        """Return the rows of these runs, None for all; `with_alone`: one process counts, whatever its schedule."""
        rows = self._finished
        if rows.empty or (run_ids is None and not self.schedules):
            return rows.copy()
        counts = rows["schedule"].isin(self.schedules or rows["schedule"])
        counts |= with_alone & (rows["ranks"] == 1) & (rows["chunks"] == 1) & (rows["replicas"] == 1)
        counts &= run_ids is None or rows["run_id"].isin(run_ids)
        return rows[counts].reset_index(drop=True)

    def schedules_of(self, run_ids: Collection[str] | None = None) -> list[str]:
        """Return the schedules of the finished runs among these, or of all, also of those that do not count."""
        rows = (row for row in self.rows if run_ids is None or row["run_id"] in run_ids)
        return sorted({row["schedule"] for row in rows if row["status"] == "finished"})

    def points(self, name: str) -> list[Point]:
        """Return the points that the sweeps of the experiment `name` planned, each point once."""
        planned = [point for plan in self.plans if plan.experiment == name for point in plan.points]
        return list({point.asked: point for point in planned}.values())

    def missing(self, name: str) -> list[str]:
        """Return the commands of an experiment's unfinished points, or of a sweep that was never started."""
        points = self.points(name)
        sweeps = [] if points else [f"{name}_quick", name]
        commands = [f"{command(sweep)}  # {about_sweep(sweep)[1]}" for sweep in sweeps if sweep in sweep_names()]
        return self.unfinished(points) if points else commands

    def unfinished(self, points: Iterable[Point]) -> list[str]:
        """Return the commands of those points that did not run to an end; failed ones, too, are among `rows`."""
        ran = {row["run_id"] for row in self.rows if row["status"] not in ("interrupted", KILLED)}
        missing = (point for point in points if point.run_id not in ran)
        return [command(point.sweep, "hydra.mode=RUN", *point.overrides) for point in missing]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dictionaries; `to_dict` takes many times as long for a frame of many columns."""
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in frame.to_numpy(dtype=object).tolist()]


def worst_rank_mib(runs: pd.DataFrame) -> list[float]:
    """Return the peak activations of each run on the rank that holds most; NaN if not measured."""
    return [max(peaks) if isinstance(peaks, list) else float("nan") for peaks in runs["peak_activation_mib"]]
