"""The experiments with their made-up runs in two sizes: a few of each kind, and all points of the stored sweep.

::

    CASES[name].few(folder)     a small product of what the sweep varies, in two launches
    CASES[name].whole(folder)   the values of sweeps/<name>.yaml, in one launch
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from analysis import (
    checkpoint_overhead,
    engine_speed,
    gradient_sync,
    hop_latency,
    hybrid,
    m_sensitivity,
    partition_skew,
    prediction,
    rank_time,
    schedules,
    sweep,
)
from microp.records import LAUNCH
from tests.made_sweeps import (
    Rows,
    checkpoint_runs,
    engine_runs,
    hybrid_runs,
    latency_runs,
    m_runs,
    schedule_runs,
    skew_runs,
    sync_runs,
)

SWEEPS = Path(__file__).parents[1] / "sweeps"


def stored(name: str, *keys: str) -> list[list[Any]]:
    """Return the values that a stored sweep gives to each key."""
    params = yaml.safe_load((SWEEPS / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]
    return [[yaml.safe_load(value) for value in str(params[key]).split(",")] for key in keys]


def panels(name: str) -> list[tuple[str, int]]:
    """Return the device and the number of ranks of each part of a stored sweep."""
    parts = [yaml.safe_load(path.read_text()) for path in sorted((SWEEPS / name).glob("*.yaml"))]
    both = [("emulated" if "emulated" in str(part.get("defaults")) else "cpu", part.get("ranks", 2)) for part in parts]
    return list(dict.fromkeys(both))


def any_sweep(store: Any) -> list:
    return [sweep.exhibit(store.runs(), "sweep", "Sweep")]


# --- all points of the stored sweeps, in one launch ---
def _all_m(folder: Path) -> Rows:
    where = [(device, ranks) for device, ranks in panels("m_sensitivity") if ranks > 1]
    return m_runs(folder, where, *stored("m_sensitivity", "chunks", "schedule"), (0,))


def _all_checkpoint(folder: Path) -> Rows:
    values = stored("checkpoint_overhead", "checkpointing", "chunks", "schedule", "model")
    return checkpoint_runs(folder, *values, launches=(0,))


def _all_skew(folder: Path) -> Rows:
    values = stored("partition_skew", "partition.share", "partition.rank", "schedule")
    return skew_runs(folder, panels("partition_skew"), *values, launches=(0,))


def _all_schedules(folder: Path) -> Rows:
    values = stored("schedules", "schedule", "chunks", "checkpointing")
    return schedule_runs(folder, *values, devices=("emulated",), ranks=4, launches=(0,))


def _all_latency(folder: Path) -> Rows:
    values = stored("hop_latency", "schedule", "chunks", "device.latency_ms")
    return latency_runs(folder, *values, ranks=4, launches=(0,))


def _all_engine(folder: Path) -> Rows:
    where = [("cpu", 2, dim, comms) for dim in (128, 512) for comms in ("shm", "tcp", "gloo")]
    where += [("emulated", ranks, 64, "shm") for ranks in (4, 8)]
    return engine_runs(folder, where, *stored("engine_speed", "schedule", "chunks"), (0,))


def _all_sync(folder: Path) -> Rows:
    return sync_runs(folder, *stored("gradient_sync", "model.dim"), (0.25, 1.0, 4.0, 25.0), (1, 2, 3, 4), (0,))


def _all_hybrid(folder: Path) -> Rows:
    values = stored("hybrid", "schedule", "chunks", "device.reduce_ms")
    return hybrid_runs(folder, *values, ranks=4, replicas=(2,), launches=(0,))


class Case(NamedTuple):
    """An experiment: what draws it, its runs in two sizes, and the columns by which a part of them is chosen."""

    draw: Callable[[Any], list]
    few: Callable[[Path], Rows]
    whole: Callable[[Path], Rows]
    keys: list[str]


_OF_ANY = ["chunks", "schedule", "device"]
CASES = {
    "m_sensitivity": Case(m_sensitivity.exhibits, m_runs, _all_m, ["fixed", "ranks", *_OF_ANY]),
    "checkpoint_overhead": Case(
        checkpoint_overhead.exhibits,
        checkpoint_runs,
        _all_checkpoint,
        ["checkpointing", "chunks", "schedule", "model", LAUNCH],
    ),
    "partition_skew": Case(
        partition_skew.exhibits,
        skew_runs,
        _all_skew,
        ["schedule", "config.partition.rank", "config.partition.share", "device", LAUNCH],
    ),
    "schedules": Case(schedules.exhibits, schedule_runs, _all_schedules, [*_OF_ANY, "checkpointing", LAUNCH]),
    "hop_latency": Case(
        hop_latency.exhibits, latency_runs, _all_latency, [*_OF_ANY, "config.device.latency_ms", LAUNCH]
    ),
    "engine_speed": Case(
        engine_speed.exhibits, engine_runs, _all_engine, [*_OF_ANY, "config.model.dim", "engine", LAUNCH]
    ),
    "gradient_sync": Case(
        gradient_sync.exhibits,
        sync_runs,
        _all_sync,
        ["sync", "replicas", "config.model.dim", "config.sync.all_reduce", "device"],
    ),
    "hybrid": Case(hybrid.exhibits, hybrid_runs, _all_hybrid, [*_OF_ANY, "config.device.reduce_ms", "replicas"]),
    "rank_time": Case(rank_time.exhibits, schedule_runs, _all_schedules, _OF_ANY),
    "prediction": Case(prediction.exhibits, schedule_runs, _all_schedules, _OF_ANY),
    "sweep": Case(any_sweep, schedule_runs, _all_schedules, [*_OF_ANY, LAUNCH]),
}
