"""Computes the run id and the question id, by which run folders, resuming, launches and the report know a run.

::

    configuration ─► without where, how and whether it runs ─┬─ with `repeat` ────► run id
    order ───────────────────────────────────────────────────┴─ without `repeat` ─► question id

Launches of one question (`repeat=0,1,2`) share the question id; each has a run id of its own.

A key that is added later must not change the ids while it has its default, so that old results are still
found. List it in `ADDED` with that default.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from microp.settings import ADAM, AS_WRITTEN

# Not part of the question: where, how and whether it runs, and a limit that can only refuse a run.
NOT_ASKED = (
    *("tracking", "launch", "snapshot", "output_dir", "activation_limit", "profile"),
    *("skip", "again", "dry_run", "fail_fast", "parallel"),
)
ADDED: dict[str, Any] = {  # `group.key`, or a key or a whole group of the top -> the default at which it is left out
    "device.speed": None,
    "device.full_ms": None,
    "device.pair_ms": None,
    "device.overhead_ms": 0.0,
    "device.optimizer_ms": 0.0,
    "device.share": False,
    "device.per_microbatch": [],
    "device.per_slice": [],
    "data.skip": 0,
    "schedule.group": None,
    "schedule.extra_warmup": 0,
    "schedule.warmup": "double",
    "schedule.overlap": False,
    "schedule.eager": False,
    "schedule.slices": 1,
    "schedule.copies": 1,
    "optimizer": asdict(ADAM),
    **asdict(AS_WRITTEN),
}
LATER = {key: default for key, default in ADDED.items() if "." not in key}  # what a run that lacks a key had
_FLOATS = {"forward_ms": 5.0, "backward_ms": 10.0}  # whole times that count as floats: the first results have them so
_FIRST_PATHS = {  # module of a builder -> its module when the first results were recorded
    "microp.schedule.builders.": "microp.schedules.",
    "microp.schedule.partition.": "microp.partition.",
}


def run_id(config: Mapping[str, Any], order: str) -> str:
    """Return `<schedule>-m<chunks>-k<ranks>[-r<replicas>]-<hash8>`, the name of the run's folder.

    Args:
        config: the resolved configuration as plain values.
        order: the schedule as text. It counts too, because the configuration may only name a file with it. Each I
            beside a W counts as B, as the first results had it.
    """
    replicas = config["replicas"]
    copies = f"-r{replicas}" if replicas > 1 else ""
    name = f"{config['schedule']['name']}-m{config['chunks']}-k{config['ranks']}{copies}"
    return f"{name}-{_digest({**_asked(config), 'order': _first_letters(order)})[:8]}"


def question_id(config: Mapping[str, Any], order: str) -> str:
    """Return 12 hexadecimal digits, the same for all launches of one question; arguments as for `run_id`."""
    asked = _asked(config)
    asked.pop("repeat", None)
    return _digest({**asked, "order": _first_letters(order)})[:12]


def _asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the configuration that counts for both ids."""
    asked = copy.deepcopy({key: value for key, value in config.items() if key not in NOT_ASKED})
    if asked["replicas"] == 1:
        del asked["sync"]  # one replica has nothing to synchronise
    asked["comms"]["timeout_s"] = 60.0  # whatever it is: the first results were hashed with this
    asked["device"].pop("memory_gib", None)  # a limit, which can only refuse a run
    for path, default in ADDED.items():
        *groups, key = path.split(".")
        holder = asked
        for group in groups:
            holder = holder.get(group, {})
        if holder.get(key, default) == default:
            holder.pop(key, None)
    times = [key for key in asked["device"] if key.endswith("_ms") and key != "latency_ms"]  # that was always a float
    asked["device"] |= {key: _as_first(key, asked["device"][key]) for key in times}
    for group in ("schedule", "partition"):
        for now, first in _FIRST_PATHS.items():
            asked[group]["builder"] = asked[group]["builder"].replace(now, first)
    return asked


def _as_first(key: str, value: Any) -> Any:
    """Return a time, or a list of them, so that the same number is always written the same."""
    if isinstance(value, list):
        return [_as_first("", time) for time in value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return float(value) if value is not None and value == _FLOATS.get(key) else value


def _first_letters(order: str) -> str:
    header, _, actions = order.partition("\n")
    divided = {name.replace("W", "I") for name in re.findall(r"\d+W\d+", actions)}  # an I without W is none of a B
    first = re.sub(r"\d+I\d+", lambda name: name[0].replace("I", "B") if name[0] in divided else name[0], actions)
    header = re.sub(r"(?<= two_bp)_\S+", "", header)  # the configuration says of which schedule it is
    return f"{header}\n{first}"


def _digest(question: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
