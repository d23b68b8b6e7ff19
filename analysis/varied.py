"""In what runs differ: the keys of the configuration that have several values, and the names of these values.

::

    varying     chunks  schedule.name              one sweep: keys that follow from others are left out
    differing   chunks  batch_size  model.dim      any runs: only keys that follow from others of their group are

`batch_size` may follow from `chunks` in one sweep, and `device.latency_ms` from `schedule.name` in runs that have
nothing to do with one another. Who sets such runs side by side has to name both.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from microp.job import NOT_ASKED
from microp.records import LAUNCH
from microp.results import telling_columns

FIRST = ("chunks", "ranks", "batch_size", "schedule", "partition", "checkpointing", "model", "device", "comms")


def varying(runs: pd.DataFrame) -> list[str]:
    """Return the configuration keys in which the runs differ, without those that follow from other keys."""
    return telling_columns(_texts(runs))


def differing(runs: pd.DataFrame) -> list[str]:
    """Return the configuration keys in which the runs differ, without those that follow from their group's others."""
    texts = _texts(runs)
    groups: dict[str, dict[str, list[str]]] = {}
    for key, values in texts.items():
        groups.setdefault(group_of(key), {})[key] = values
    kept = {group: telling_columns(of_group) for group, of_group in groups.items()}
    return [key for key in texts if key in kept[group_of(key)]]


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


def _texts(runs: pd.DataFrame) -> dict[str, list[str]]:
    """Return the keys with several values, and the values of the runs; names first.

    The launch and what is no part of the question are left out.
    """
    asked = [column.removeprefix("config.") for column in runs.columns if column.startswith("config.")]
    asked = [key for key in asked if group_of(key) not in (*NOT_ASKED, LAUNCH.removeprefix("config."))]
    texts = {key: list(map(str, runs[f"config.{key}"].tolist())) for key in sorted(asked, key=_rank)}
    return {key: values for key, values in texts.items() if len(set(values)) > 1}


def _rank(key: str) -> tuple[bool, int, str]:
    group = group_of(key)
    return not (key == group or key.endswith(".name")), FIRST.index(group) if group in FIRST else len(FIRST), key
