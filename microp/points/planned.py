"""A checked point: what a sweep's plan holds of it on disk.

::

    configuration, job ── Planned.record ──► a line of points.jsonl ── planned ──► the same, in any process
    points ── plan_sweep ──► outputs/sweeps/<time>_<name>/plan.json, points.jsonl ; ── write_points ──► table.csv
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from microp import records
from microp.config import Config, from_plain, job_with, plain
from microp.job import Job, Snapshot
from microp.results import PointRow, read_point, write_table
from microp.schedule import Partition, from_text, to_text
from microp.system import redact_words


class Planned(NamedTuple):
    """A checked point of a sweep, or a single run."""

    overrides: list[str]  # what was typed for it
    config: Config  # its configuration
    job: Job  # the job of that configuration
    # the number of the run's last attempt when the point was planned; a clock may have been set back since
    known: int = 0
    experiment: str | None = None  # the name of the stored sweep that it belongs to, if any

    @classmethod
    def now(cls, overrides: list[str], config: Config, job: Job, experiment: str | None = None) -> Planned:
        """Return a point that is planned now."""
        point = cls(overrides, config, job, experiment=experiment)
        return point._replace(known=records.last_attempt(point.run))

    @property
    def run(self) -> Path:
        """The folder of its attempts."""
        return Path(self.config.output_dir) / "runs" / self.job.run_id

    def finished(self, again: bool = False) -> Path | None:
        """Return its last finished attempt, or None; with `again` only one that was made since the point was planned.

        If trained weights are asked for, only an attempt that has left them counts.
        """
        return records.finished(self.run, self.known if again else 0, final=self.config.snapshot.final)

    def made(self) -> list[Path]:
        """Return the attempts that were made since the point was planned, by whatever process."""
        return [attempt for attempt in records.attempts(self.run) if records.number_of(attempt) > self.known]

    def record(self) -> dict[str, Any]:
        """Return what a plan has to hold so that `planned` returns this point in any process."""
        return {
            "run_id": self.job.run_id,
            "question_id": self.job.question_id,
            "overrides": self.overrides,
            "config": plain(replace(self.config, device=self.job.device)),
            "order": to_text(self.job.schedule),
            "partition": list(self.job.partition.sizes),
            "known": self.known,
            "experiment": self.experiment,
            "resumed": self.job.resumed and self.job.resumed._asdict(),
        }


def planned(record: dict[str, Any]) -> Planned:
    """Return a point from a plan, or raise RecordError; neither `conf/` nor the schedule's builder is asked again."""
    try:
        config = from_plain(record["config"])
        order, partition = from_text(record["order"]), Partition(tuple(record["partition"]))
        job = job_with(config, order, partition, record["run_id"], record["question_id"])
        resumed = Snapshot(**record["resumed"]) if record["resumed"] else None
        job = replace(job, resumed=resumed)
        return Planned(record["overrides"], config, job, record.get("known", 0), record.get("experiment"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise records.RecordError(
            f"the plan's point {record.get('run_id')} is damaged ({error!r}): run its sweep again"
        ) from error


def plan_sweep(wanted: Path, name: str, points: Iterable[dict[str, Any]], again: bool) -> records.SweepPlan:
    """Make the folder of a sweep that starts, `wanted` or one beside it, and write its plan."""
    plan = records.plan_in(records.claim_folder(wanted))
    head = {"schema_version": records.SCHEMA_VERSION, "name": name, "experiment": experiment_of(name) or name}
    plan.write({**head, "command": redact_words(sys.argv), "again": again}, points)
    return plan


def read_points(points: Iterable[Planned], again: bool) -> list[PointRow]:
    """Return one row per point, in order: of its finished attempt, else of its last one since it was planned.

    A point whose files have been removed or damaged since has none.
    """
    rows = []
    for point in points:
        with suppress(records.RecordError):
            made = [attempt for attempt in point.made() if (attempt / "summary.json").exists()]
            if attempt := point.finished(again) or (made[-1] if made else None):
                rows.append(read_point(plain(point.config), point.overrides, attempt))
    return rows


def write_points(folder: Path, points: Mapping[str, Planned], again: bool) -> None:
    """Write a sweep's table.csv with one row per planned point; one that was not run has only what was asked."""
    asked = {name: (plain(point.config), point.overrides) for name, point in points.items()}
    write_table(folder / "table.csv", asked, read_points(points.values(), again))


def experiment_of(name: str) -> str | None:
    """Return the experiment of a stored sweep, `m_sensitivity` also for `m_sensitivity_quick`.

    None for `config`, the name of a command without a stored sweep.
    """
    return None if name == "config" else name.removesuffix("_quick")


def finished_points(done: int, points: int) -> str:
    """Return how many points of a sweep are not run, because they have run before."""
    return f"{done} of {points} points are finished already; again=true runs them again"


def equal_points(points: int, runs: int) -> str:
    """Return how many runs these points are."""
    return f"{points} points are {runs} run{'s' if runs > 1 else ''}: points that ask the same are run once"
