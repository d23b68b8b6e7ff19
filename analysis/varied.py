"""In what runs differ: the keys of the configuration that have several values, and the names of these values.

::

    varying     chunks  schedule.name              one sweep: keys that follow from others are left out
    differing   chunks  batch_size  model.dim      any runs: only keys that follow from others of their group are

`batch_size` may follow from `chunks` in one sweep, and `device.latency_ms` from `schedule.name` in runs that have
nothing to do with one another. Who sets such runs side by side has to name both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from microp.job import NOT_ASKED
from microp.records import LAUNCH

FIRST = ("chunks", "ranks", "batch_size", "schedule", "partition", "checkpointing", "model", "device", "comms")


def varying(runs: pd.DataFrame) -> list[str]:
    """Return the configuration keys in which the runs differ, without those that follow from other keys."""
    return _kept(runs, lambda _: "")


def differing(runs: pd.DataFrame) -> list[str]:
    """Return the configuration keys in which the runs differ, without those that follow from their group's others."""
    return _kept(runs, group_of)


def _kept(runs: pd.DataFrame, group: Callable[[str], str]) -> list[str]:
    """Return the keys with several values that do not follow from others of their group."""
    kept: list[str] = []
    for key in _several(runs):
        kept += [key] * (not _follows(runs, key, [other for other in kept if group(other) == group(key)]))
    return kept


def group_of(key: str) -> str:
    """Return the group of a key, as `device` for `device.latency_ms`."""
    return key.partition(".")[0]


def is_numeric(runs: pd.DataFrame, key: str) -> bool:
    """Return whether all values of a key are numbers."""
    values = runs[f"config.{key}"].tolist()
    return all(isinstance(value, int | float) and not isinstance(value, bool) and value == value for value in values)


def say(key: str, value: Any) -> str:
    """Return the name of a value: `gpipe` for schedule.name, `model.dim=64` for other keys."""
    number = f"{value:g}" if isinstance(value, float) else str(value)
    return number if key.endswith(".name") else f"{key}={number}"


def _several(runs: pd.DataFrame) -> list[str]:
    """Return the keys with several values, without the launch and what is no part of the question; names first."""
    asked = [column.removeprefix("config.") for column in runs.columns if column.startswith("config.")]
    asked = [key for key in asked if group_of(key) not in (*NOT_ASKED, LAUNCH.removeprefix("config."))]
    return sorted((key for key in asked if len(set(map(str, runs[f"config.{key}"].tolist()))) > 1), key=_rank)


def _rank(key: str) -> tuple[bool, int, str]:
    group = group_of(key)
    return not (key == group or key.endswith(".name")), FIRST.index(group) if group in FIRST else len(FIRST), key


def _follows(runs: pd.DataFrame, key: str, others: Sequence[str]) -> bool:
    """Return whether the value of a key is the same in all runs with equal values of `others`."""
    if not others:
        return False
    groups = runs[f"config.{key}"].map(str).groupby([runs[f"config.{other}"].map(str) for other in others])
    return bool(groups.nunique().max() == 1)
