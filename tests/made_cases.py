"""The experiments with their made-up runs in two sizes: a few of each kind, and all points of the stored sweep.

::

    CASES[name].few(folder)     a small product of what the sweep varies, in two launches
    CASES[name].whole(folder)   the values of sweeps/<name>.yaml, in one launch
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from analysis import sweep
from analysis.command import section
from analysis.exhibit import Exhibit, Section
from microp.records import LAUNCH
from tests import made_sweeps as runs
from tests.made_sweeps import Rows

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


class Case(NamedTuple):
    """An experiment: what draws it, its runs in two sizes, and the columns by which a part of them is chosen."""

    draw: Callable[[Any], Section]
    few: Callable[[Path], Rows]
    whole: Callable[[Path], Rows]
    keys: list[str]


OF_ANY, ONE, DIM = ["chunks", "schedule", "device"], (0,), "config.model.dim"
ENGINES = [("cpu", 2, dim, comms) for dim in (128, 512) for comms in ("shm", "tcp", "gloo")]
ENGINES += [("emulated", ranks, 64, "shm") for ranks in (4, 8)]
SKEW, LATENCY = ("partition.share", "partition.rank", "schedule"), ("schedule", "chunks", "device.latency_ms")
SCHEDULES, HYBRID = ("schedule", "chunks", "checkpointing"), ("schedule", "chunks", "device.reduce_ms")
WHOLE: dict[str, Callable[..., Rows]] = {  # name -> all points of the stored sweep; of others those of `schedules`
    "m_sensitivity": lambda folder, values=("chunks", "schedule"): runs.m_runs(
        folder, [each for each in panels("m_sensitivity") if each[1] > 1], *stored("m_sensitivity", *values), ONE
    ),
    "checkpoint_overhead": lambda folder, values=("checkpointing", "chunks", "schedule", "model"): runs.checkpoint_runs(
        folder, *stored("checkpoint_overhead", *values), ONE
    ),
    "partition_skew": lambda folder: runs.skew_runs(
        folder, panels("partition_skew"), *stored("partition_skew", *SKEW), ONE
    ),
    "schedules": lambda folder: runs.schedule_runs(folder, *stored("schedules", *SCHEDULES), ("emulated",), 4, ONE),
    "hop_latency": lambda folder: runs.latency_runs(folder, *stored("hop_latency", *LATENCY), 4, ONE),
    "engine_speed": lambda folder: runs.engine_runs(
        folder, ENGINES, *stored("engine_speed", "schedule", "chunks"), ONE
    ),
    "gradient_sync": lambda folder: runs.sync_runs(
        folder, *stored("gradient_sync", "model.dim"), (0.25, 1.0, 4.0, 25.0), (1, 2, 3, 4), ONE
    ),
    "hybrid": lambda folder: runs.hybrid_runs(folder, *stored("hybrid", *HYBRID), 4, (2,), ONE),
}
PARTS = {  # name -> a small product of what the sweep varies, in two launches, and the columns
    "m_sensitivity": (runs.m_runs, ["fixed", "ranks", *OF_ANY]),
    "checkpoint_overhead": (runs.checkpoint_runs, ["checkpointing", "chunks", "schedule", "model", LAUNCH]),
    "partition_skew": (runs.skew_runs, ["schedule", *(f"config.{key}" for key in SKEW[1::-1]), "device", LAUNCH]),
    "schedules": (runs.schedule_runs, [*OF_ANY, "checkpointing", LAUNCH]),
    "hop_latency": (runs.latency_runs, [*OF_ANY, "config.device.latency_ms", LAUNCH]),
    "engine_speed": (runs.engine_runs, [*OF_ANY, DIM, "engine", LAUNCH]),
    "gradient_sync": (runs.sync_runs, ["sync", "replicas", DIM, "config.sync.all_reduce", "device"]),
    "hybrid": (runs.hybrid_runs, [*OF_ANY, "config.device.reduce_ms", "replicas"]),
    "rank_time": (runs.schedule_runs, OF_ANY),
    "prediction": (runs.schedule_runs, OF_ANY),
    "sweep": (runs.schedule_runs, [*OF_ANY, LAUNCH]),
}


def drawing(name: str) -> Callable[[Any], Section]:
    if name == "sweep":
        return lambda store: own_sweep(sweep.exhibit(store.runs(), "sweep", "Sweep"))
    return lambda store: section(name, store)


def own_sweep(exhibit: Exhibit) -> Section:
    return Section("sweep", exhibit.title, exhibit.answer, [exhibit], [])


CASES = {
    name: Case(drawing(name), few, WHOLE.get(name, WHOLE["schedules"]), keys) for name, (few, keys) in PARTS.items()
}
