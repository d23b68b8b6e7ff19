"""Tells which knobs a configuration does not use, and sets them to their defaults, so that they are not asked.

::

    checkpointing=never checkpointing.segments=3  ── one run ──► refused: never keeps every activation
    checkpointing=never,segments ... segments=3   ── a sweep ──► a note; `never` runs with segments at its default

A *knob* is a key of an option besides its name. `_rules` has the knobs that only some configurations use; all others
are used always. A knob that the chosen option lacks is not used either: in a sweep, another one may have it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

from microp.config import schema
from microp.config.factory import build, is_computed
from microp.schedule import Schedule
from microp.settings import TIMES, quoted
from microp.system import flatten, override

NOTHING_LEFT = "skip=true leaves out every point of this command: leave at least one, or leave skip away"
_NOT_FOR_A_PRICE = ["dry_run", "fail_fast", "parallel"]
_OF_STEPS = [*_NOT_FOR_A_PRICE, "steps", "warmup_steps", "learning_rate", "repeat", "again", "snapshot", "launch"]
_OF_ORDERS = ["ranks", "chunks", "replicas", "schedule", "partition", "checkpointing", "sync"]
NOT_FOR = {  # another command -> the keys and groups of a run that it does not use
    "plan": [*_OF_STEPS, "seed", "activation_limit", "device.speed"],
    "profile": [*_OF_STEPS, *_OF_ORDERS, "seed", "activation_limit", "device.memory_gib", "device.speed"],
    "order": [*_NOT_FOR_A_PRICE, "device.reduce_ms", "device.optimizer_ms"],
    "price": _NOT_FOR_A_PRICE,
}
_PROFILED = {*TIMES, "per"} - {"reduce_ms"}  # the knobs of an emulated device that its profile has


class Unused(NamedTuple):
    """Why a configuration does not use a knob."""

    by: str  # what does not use it, for example `checkpointing=never`
    remedy: str  # what would use it, for example `use checkpointing=segments`
    value: str = ""  # what was given


def _rules(config: schema.Config) -> dict[str, Unused]:
    """Return the knobs, and the whole groups, that the configuration of a run does not use; the last reason counts."""
    policy, device, schedule = f"checkpointing={config.checkpointing.name}", config.device, config.schedule.get("name")
    by_torch, partition = config.engine.name == "torch", config.partition
    # the schedule is built only if it matters
    whole = not by_torch and config.engine.batch_weights and not _of_schedule(config, "input_gradients", True)
    no_sums = config.replicas == 1 and getattr(device, "reduce_ms", None) and _of_schedule(config, "copies", 2) == 1
    speeds = device.is_emulated or is_computed(partition)
    rules = [  # whether it holds, the knobs, what does not use them, what would
        (config.replicas == 1, ["sync"], "replicas=1", "replicas=2 or more"),
        (
            bool(no_sums),
            ["device.reduce_ms"],
            f"schedule={schedule} replicas=1",
            "replicas=2 or more, or a schedule with copies",
        ),
        (config.sync.name == "torch_ddp", ["sync.first_bucket_mb"], "sync=torch_ddp, where it is 1", "sync=ddp"),
        (config.checkpointing.name != "segments", ["checkpointing.segments"], policy, "checkpointing=segments"),
        (config.checkpointing.segments == 0, ["device.recompute_ms"], policy, "checkpointing=always"),
        (by_torch, ["engine.batch_weights"], "engine=torch", "engine=microp"),
        (whole, ["engine.batch_weights"], f"schedule={schedule}, which has no W", "one with W, for example zb_h1"),
        (config.ranks == 1, ["device.latency_ms"], "ranks=1", "ranks=2 or more"),
        (
            not speeds,
            ["device.speed"],
            f"device={device.name} with partition={partition.get('name')}",
            "partition=balanced or device=emulated",
        ),
        (
            config.profile is not None and device.is_emulated,
            [f"device.{key}" for key in sorted(_PROFILED)],
            f"profile={config.profile}, which has the times",
            "one of the two",
        ),
    ]
    return {
        key: Unused(by, f"use {remedy}")
        for holds, keys, by, remedy in rules
        for key in keys
        if holds and _is_ours(config, key)
    }


def _is_ours(config: schema.Config, key: str) -> bool:
    """Return whether a group, or a knob, is of one of microp's own options; of a user's own every knob counts."""
    group, _, knob = key.partition(".")
    return not knob or knob in schema.default_values(group, _name(config, group))


def _of_schedule(config: schema.Config, name: str, otherwise: Any) -> Any:
    """Return an attribute of the schedule; `otherwise` if it cannot be built, and its own problem is told instead."""
    try:
        built = build("schedule", config.schedule, Schedule, ranks=config.ranks, chunks=config.chunks)
    except ValueError:
        return otherwise
    return getattr(built, name)


def unused(config: schema.Config) -> dict[str, Unused]:
    """Return the knobs, the whole groups and the other keys that a configuration does not use.

    A plan uses whatever one of its choices can use.
    """
    if isinstance(config, schema.PlanConfig):
        order, policy = schema.default_values("schedule", "zb_h1"), schema.default_settings("checkpointing", "segments")
        result = _rules(run_of(config, ranks=2, replicas=2, schedule=order, checkpointing=policy))
        return result | dict.fromkeys(NOT_FOR["plan"], Unused("a plan", "leave it out"))
    result = _rules(config)
    kinds = {schema.ProfileConfig: "profile", schema.OrderConfig: "order", schema.SimulateConfig: "price"}
    if what := kinds.get(type(config)):
        by = "an order" if what == "order" else f"a {what}"
        result |= {key: Unused(by, "leave it out") for key in NOT_FOR[what] if _is_ours(config, key)}
    if (
        isinstance(config, schema.SimulateConfig)
        and not config.device.is_emulated
        and not is_computed(config.partition)
    ):
        by = f"a price of device={config.device.name} with partition={_name(config, 'partition')}"
        result["profile"] = Unused(by, "use device=FILE.yaml for its times, or partition=balanced")
    return {key: why for key, why in result.items() if "." not in key or _group(key) not in result}


def chosen(
    config: schema.Config, schedule: str, checkpointing: str, replicas: int, knobs: Iterable[tuple[str, Any]] = ()
) -> schema.Config:
    """Return the configuration of a run with one choice of a plan; `chunks` is left as it is."""
    name, _, segments = checkpointing.partition("=")
    policy = schema.default_settings("checkpointing", name)
    return run_of(
        config,
        schedule=schema.default_values("schedule", schedule) | dict(knobs),
        checkpointing=replace(policy, segments=int(segments)) if segments.isdecimal() else policy,
        replicas=replicas,
        ranks=max(1, config.ranks // replicas),
    )


def uses(group: str, key: str, option: str) -> bool:
    """Return whether a key of a group is used if one of microp's options is chosen, whatever else is asked."""
    options = schema.default_options() | {"checkpointing": "always", "partition": "balanced", group: option}
    settings = {name: schema.default_settings(name, chosen) for name, chosen in options.items()}
    config = schema.Config(ranks=2, chunks=4, replicas=2, profile=None, **settings)
    return not {f"{group}.{key}", group} & unused(config).keys()


def run_of(config: schema.Config, **changes: Any) -> schema.Config:
    """Return the configuration of a run that another command's configuration is of, with some keys changed."""
    return schema.Config(**{field.name: getattr(config, field.name) for field in fields(schema.Config)} | changes)


def used_knobs(config: schema.Config, group: str) -> tuple[str, list[str]]:
    """Return the name of the option that was chosen of a group, and which of its keys can be typed beside it."""
    node, not_used = getattr(config, group), unused(config)
    keys = node if isinstance(node, dict) else vars(node)
    return _name(config, group), [
        key for key in keys if not schema.is_fixed(group, key) and f"{group}.{key}" not in not_used
    ]


def without_unused(config: schema.Config) -> schema.Config:
    """Return the configuration with every unused knob at its default: what it runs."""
    result = copy.deepcopy(config)
    for key in unused(config):
        group, _, knob = key.partition(".")
        if knob:
            setattr(getattr(result, group), knob, schema.default_values(group, _name(config, group))[knob])
        elif group in schema.GROUPS:
            setattr(result, group, schema.default_settings(group, schema.default_options()[group]))
        else:
            setattr(result, group, schema.values_of("base")[group])
    return result


class Knobs:
    """The knobs that points of a command ask for although none, or only some of them, use these."""

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, Unused]] = {}  # key -> what does not use it -> why, and the value
        self._never: set[str] | None = None  # keys and groups that no point uses

    def add(self, config: schema.Config, lacking: Mapping[str, Unused]) -> None:
        """Add a point as it was composed, with the given keys that its options do not have."""
        not_here, runs = unused(config), flatten(asdict(without_unused(config)))
        asked = dict(lacking)
        for key, value in flatten(asdict(config)).items():
            name, group = key.removesuffix(".name"), _group(key)
            why = not_here.get(name) or not_here.get(group)
            if why is not None and value != runs.get(key) and group not in asked:  # of an unused option its name alone
                asked[name] = why._replace(value=quoted(override(key, value).partition("=")[2]))
        for key, why in asked.items():
            self._asked.setdefault(key, {})[why.by] = why
        keys = not_here.keys() | lacking.keys()
        self._never = set(keys) if self._never is None else self._never & keys

    @property
    def problems(self) -> list[str]:
        """One sentence for each knob that is asked for but that no point uses."""
        never = [(key, next(iter(whys.values()))) for key, whys in sorted(self._asked.items()) if self._is_never(key)]
        return [f"{key}={why.value} is not used by {why.by}: {why.remedy}" for key, why in never]

    @property
    def notes(self) -> list[str]:
        """One sentence for each knob that only some points use."""
        return [
            f"{key} is not used by {by}" for key, whys in self._asked.items() if not self._is_never(key) for by in whys
        ]

    def _is_never(self, key: str) -> bool:
        return not {key, _group(key)}.isdisjoint(self._never or ())


def _group(key: str) -> str:
    return key.partition(".")[0]


def _name(config: schema.Config, group: str) -> str:
    """Return the name of the option that was chosen of a group."""
    node = getattr(config, group)
    keys = node if isinstance(node, dict) else vars(node)
    return str(keys.get("name", keys.get("mode")))
