"""The schedule of a recorded run and, on an emulated device, the nominal time of each action.

::

    a row's config.schedule.* ──► order    the builder's schedule, with the run's knobs
            config.device.*   ──► costs    in ms, one value per stage; with recomputation if any

`costs` does for a row of the store what microp's `EmulatedSettings.costs` does, which needs torch.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import pandas as pd

from microp import schedules
from microp.costs import Costs, for_stages
from microp.schedule import Schedule
from microp.schedules import closed_forms
from microp.simulate import simulate
from microp.trace import makespan

KNOB = "config.schedule."


def order(row: dict[str, Any]) -> Schedule:
    """Return the schedule of a row, built again."""
    builder = getattr(schedules, row[f"{KNOB}builder"].rpartition(".")[2])
    types = get_type_hints(builder)  # rows have floats for integers and strings for enums
    knobs = {
        name: types[name](value)
        for key, value in row.items()
        if (name := key.removeprefix(KNOB)) in types and key.startswith(KNOB) and is_given(value)
    }
    found: Schedule = builder(row["ranks"], row["chunks"], **knobs)
    return found


def costs(row: dict[str, Any], schedule: Schedule) -> Costs:
    """Return the nominal times of one microbatch in an emulated run, in milliseconds."""
    per, rows = row["config.device.per"], row["batch_size"] / row["chunks"]
    scale = [(n if "layer" in per else 1) * (rows if "row" in per else 1) for n in row["partition"]]

    def times(kind: str) -> list[float] | None:
        value = row.get(f"config.device.{kind}_ms")
        if not is_given(value):
            return None
        given = value if isinstance(value, list) else [value] * len(scale)
        return [float(time) * factor for time, factor in zip(given, scale, strict=True)]

    forward, backward, weight = times("forward"), times("backward"), times("weight")
    if weight is None and schedule.split and backward is not None:
        weight = backward = [time / 2 for time in backward]
    return for_stages(
        schedule.stages,
        forward=forward,
        backward=backward,
        weight=weight,
        recompute=(times("recompute") or forward) if row["config.checkpointing.segments"] else None,
        spared=(schedule.chunks - 1,) if row["config.checkpointing.spare_last"] else (),
        latency=float(row["config.device.latency_ms"]),
    )


def step_ms(schedule: Schedule, given: Costs) -> float:
    """Return the makespan by its closed form, or by simulation if there is none."""
    form = closed_forms.makespan(schedule, given)
    return float(makespan(simulate(schedule, given)) if form is None else form)


def is_given(value: Any) -> bool:
    """Return whether a row has this value; it is NaN if only other rows have the column."""
    return isinstance(value, list | str) or not pd.isna(value)
