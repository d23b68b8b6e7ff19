"""The schedule of a recorded run and, on an emulated device, the nominal time of each action.

::

    the attempt's schedule.txt      ──► order    also of a schedule that a user added
    a row's config.device.*         ──► costs    in ms, one value per stage; with recomputation if any
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from microp.job import Workload
from microp.records import read_schedule
from microp.results import is_missing, records, unscaled
from microp.schedule import Schedule
from microp.settings import Checkpointing, EmulatedSettings
from microp.simulator import Costs, closed_forms, nominal_costs, simulate
from microp.trace import makespan


def emulated(runs: pd.DataFrame, **columns: str) -> pd.DataFrame:
    """Return the runs on emulated devices, the only ones that have nominal times; `columns` get shorter names."""
    runs = runs[runs["device"] == "emulated"].reset_index(drop=True)
    return runs.assign(**{name: runs[column].astype(float) for name, column in columns.items() if column in runs})


def uncompared(runs: pd.DataFrame) -> str | None:
    """Return why the times of runs do not compare, as `unscaled` says it; None if they do."""
    return unscaled({key.removeprefix("config."): value for key, value in row.items()} for row in records(runs))


def order(row: dict[str, Any]) -> Schedule:
    """Return the schedule of a row, as it was recorded.

    Raises:
        RecordError: the run recorded neither its schedule nor a trace.
    """
    return read_schedule(Path(row["folder"]))


def costs(row: dict[str, Any], schedule: Schedule) -> Costs:
    """Return the nominal times of one microbatch in an emulated run, in milliseconds."""
    group = group_of(row, "config.device.")
    keys = ("forward_ms", "backward_ms", "weight_ms", "recompute_ms", "reduce_ms")
    forward, backward, weight, recompute, reduce = (group.get(key) for key in keys)
    latency, overhead = float(group["latency_ms"]), group.get("overhead_ms") or 0.0  # older runs have none
    device = EmulatedSettings("emulated", 1, forward, backward, weight, recompute, latency, reduce, group["per"])
    device = replace(device, full_ms=group.get("full_ms"), overhead_ms=overhead)
    policy = group_of(row, "config.checkpointing.")
    checkpointing = Checkpointing(row["checkpointing"], int(policy["segments"]), bool(policy["spare_last"]))
    workload = Workload(schedule, tuple(row["partition"]), (), checkpointing)
    return nominal_costs(device, workload, row["batch_size"] / row["replicas"] / row["chunks"])


def case(row: dict[str, Any]) -> tuple[Schedule, Costs]:
    """Return the order of an emulated run and its nominal times."""
    schedule = order(row)
    return schedule, costs(row, schedule)


def step_ms(schedule: Schedule, given: Costs) -> float:
    """Return the makespan by its closed form, or by simulation if there is none."""
    form = closed_forms.makespan(schedule, given)
    return float(makespan(simulate(schedule, given)) if form is None else form)


def origin(cases: Iterable[tuple[Schedule, Costs]]) -> str:
    """Return for which schedules `step_ms` is a closed form, and for which it is simulated, as text."""
    closed: dict[str, set[bool]] = {}
    for schedule, given in cases:
        closed.setdefault(schedule.name, set()).add(closed_forms.makespan(schedule, given) is not None)
    ways = {"closed form": {True}, "simulated": {False}, "closed form or simulated": {True, False}}
    found = {way: names for way, own in ways.items() if (names := [name for name in closed if closed[name] == own])}
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{way} for {', '.join(names)}" for way, names in found.items())


def group_of(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the row's keys of one group of the configuration, without those that only other rows have."""
    own = {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}
    return {key: value for key, value in own.items() if not is_missing(value)}
