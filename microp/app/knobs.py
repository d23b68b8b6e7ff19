"""Tells which knobs a configuration does not use, and sets them to their defaults, so that they are not asked.

::

    checkpointing=never checkpointing.segments=3  ── one run ──► refused: never keeps every activation
    checkpointing=never,segments ... segments=3   ── a sweep ──► a note; `never` runs with segments at its default

A *knob* is a key of an option besides its name. `RULES` lists the knobs that only some configurations use; all
others are used always. A knob that the chosen option lacks is not used either: in a sweep, another one may have it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from microp.app.composing import key_of
from microp.app.factory import asks_for, build
from microp.app.places import CONF
from microp.app.schema import GROUPS, Config, PlanConfig, is_fixed, schema_of
from microp.schedule import Schedule
from microp.settings import TrackingSettings, is_joined, quoted

NOTHING_LEFT = "skip=true leaves out every point of this command: leave at least one, or leave skip away"


_NOT_FOR_A_PLAN = ["steps", "warmup_steps", "learning_rate", "seed", "repeat", "again", "fail_fast", "parallel"]
_NOT_FOR_A_PLAN += ["activation_limit", "snapshot", "launch"]


class Unused(NamedTuple):
    """Why a configuration does not use a knob.

    Attributes:
        by: what does not use it, for example `checkpointing=never`.
        remedy: what would use it, for example `use checkpointing=segments`.
        value: what was given.
    """

    by: str
    remedy: str
    value: str = ""


def _batches_no_w(config: Config) -> Unused | None:
    if config.engine.name == "torch":
        return Unused("engine=torch", "use engine=microp")
    return _has_no_w(config) if config.engine.batch_weights else None  # the schedule is built only if it matters


def _has_no_w(config: Config) -> Unused | None:
    try:
        schedule = build("schedule", config.schedule, Schedule, ranks=config.ranks, chunks=config.chunks)
    except ValueError:
        return None  # the schedule's own problem is told instead
    if schedule.split:
        return None
    return Unused(f"schedule={config.schedule['name']}, which has no W", "use one with W, for example schedule=zb_h1")


def _starts_no_processes(config: Config) -> Unused | None:
    if is_joined() or config.launch.name == "torchrun":
        return Unused("launch=torchrun", "use the options of torchrun")
    return Unused("comms=threads", "use comms=auto") if config.comms.name == "threads" else None


def _unless(used: Callable[[Config], bool], by: Callable[[Config], str], remedy: str) -> Rule:
    return lambda config: None if used(config) else Unused(by(config), remedy)


def _or_timed(rule: Rule) -> Rule:
    """Return the rule of a nominal time, which a profile of an emulated device has, too."""

    def timed(config: Config) -> Unused | None:
        if config.profile is not None and config.device.is_emulated:
            return Unused(f"profile={config.profile}, which has the times", "leave one of the two out")
        return rule(config)

    return timed


def _policy(config: Config) -> str:
    return f"checkpointing={config.checkpointing.name}"


Rule = Callable[[Config], Unused | None]
_SEVERAL_REPLICAS = _unless(lambda c: c.replicas != 1, lambda _: "replicas=1", "use replicas=2 or more")
RULES: dict[str, Rule] = (
    {  # a knob, or a whole group
        "sync": _SEVERAL_REPLICAS,
        "sync.first_bucket_mb": _unless(
            lambda c: c.sync.name != "torch_ddp", lambda _: "sync=torch_ddp, where it is 1", "use sync=ddp"
        ),
        "checkpointing.segments": _unless(
            lambda c: c.checkpointing.name == "segments", _policy, "use checkpointing=segments"
        ),
        "engine.batch_weights": _batches_no_w,
        "device.latency_ms": _or_timed(_unless(lambda c: c.ranks != 1, lambda _: "ranks=1", "use ranks=2 or more")),
        "device.recompute_ms": _or_timed(
            _unless(lambda c: c.checkpointing.segments != 0, _policy, "use checkpointing=always")
        ),
        "device.reduce_ms": _SEVERAL_REPLICAS,
        "device.speed": _unless(
            lambda c: c.device.is_emulated or asks_for("partition", c.partition, "task"),
            lambda c: f"device={c.device.name} with partition={c.partition['name']}",
            "use partition=balanced or device=emulated",
        ),
        "launch.shutdown_s": _starts_no_processes,
        "snapshot.keep": _unless(
            lambda c: c.snapshot.every is not None, lambda _: "snapshot.every=null", "use snapshot.every=10"
        ),
    }
    | {
        f"device.{key}": _or_timed(lambda _: None)
        for key in ("forward_ms", "backward_ms", "weight_ms", "full_ms", "per", "overhead_ms", "optimizer_ms")
    }
    | {
        f"tracking.{field.name}": _unless(
            lambda c: c.tracking.mode != "disabled", lambda _: "tracking=disabled", "use tracking=offline"
        )
        for field in fields(TrackingSettings)
        if not is_fixed("tracking", field.name)
    }
)


def unused(config: Config) -> dict[str, Unused]:
    """Return the knobs, the whole groups and the other keys that a configuration does not use.

    What any of the choices of a plan uses is used.
    """
    choices = choices_of(config)
    found = {}
    for key, rule in RULES.items():
        whys = [rule(choice) for choice in choices] if _is_ours(config, key) else []
        if whys and whys[0] is not None and None not in whys:
            found[key] = whys[0]
    if isinstance(config, PlanConfig):
        found |= dict.fromkeys(_NOT_FOR_A_PLAN, Unused("a plan", "leave it out"))
    return {key: why for key, why in found.items() if "." not in key or _group(key) not in found}


def choices_of(config: Config) -> list[Config]:
    """Return configurations that have every value that a plan searches, with these in turn; else only this one."""
    if not isinstance(config, PlanConfig):
        return [config]
    space = config.search
    names = [name for name in space.schedule if is_ours("schedule", name)]
    policies = [policy for policy in space.checkpointing if is_ours("checkpointing", policy.partition("=")[0])]
    replicas = [count for count in space.replicas if count > 0]
    number = max(len(names), len(policies), len(replicas))
    turns = zip(range(number), cycle(names), cycle(policies), cycle(replicas), strict=False)  # none if a list is empty
    return [chosen(config, name, policy, count) for _, name, policy, count in turns] or [config]


def chosen(config: Config, schedule: str, checkpointing: str, replicas: int, stages_per_rank: int = 0) -> Config:
    """Return the configuration of a run with one choice of a plan; `chunks` is left as it is."""
    name, _, segments = checkpointing.partition("=")
    policy = _settings("checkpointing", name)
    return run_of(
        config,
        schedule=default_values("schedule", schedule)
        | ({"stages_per_rank": stages_per_rank} if stages_per_rank else {}),
        checkpointing=replace(policy, segments=int(segments)) if segments.isdecimal() else policy,
        replicas=replicas,
        ranks=max(1, config.ranks // replicas),
    )


def uses(key: str, option: str) -> bool:
    """Return whether a key of a group is used if one of microp's options is chosen, whatever else is asked."""
    group = _group(key)
    chosen = {each: _default_option(each) for each in GROUPS}
    chosen |= {"checkpointing": _settings("checkpointing", "always"), group: _settings(group, option)}
    config = Config(ranks=2, chunks=4, replicas=2, profile=None, **chosen)
    config.snapshot.every = 1
    return not {key, group} & unused(config).keys()


def run_of(config: Config, **changes: Any) -> Config:
    """Return the configuration of a run that another command's configuration is of, with some keys changed."""
    return Config(**{field.name: getattr(config, field.name) for field in fields(Config)} | changes)


def without_unused(config: Config) -> Config:
    """Return the configuration with every unused knob at its default: what it runs."""
    result = copy.deepcopy(config)
    for key in unused(config):
        group, _, knob = key.partition(".")
        if knob:
            setattr(getattr(result, group), knob, _default(config, key))
        else:
            setattr(result, group, _default_option(group) if group in GROUPS else _base()[group])
    return result


class Knobs:
    """The knobs that the points of a command ask for: those that some points use, and those that none uses."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._unused: dict[str, dict[str, tuple[str, Unused]]] = {}  # key -> what does not use it -> as typed, and why

    def add(self, words: Iterable[str], config: Config, lacking: Mapping[str, Unused]) -> None:
        """Add a point.

        Args:
            words: its overrides as typed.
            config: its configuration as composed.
            lacking: the given keys that its options do not have.
        """
        not_here = unused(config)
        values = {key: f"{key}={why.value}" for key, why in lacking.items()} | _changed(config, not_here)
        not_here |= lacking
        asked = values | {key_of(word): word for word in words}
        for key, word in sorted(asked.items()):
            why = not_here.get(key) or not_here.get(_group(key))
            if why is None:
                self._used.add(key)
            else:
                self._unused.setdefault(key, {})[why.by] = (word, why)

    @property
    def problems(self) -> list[str]:
        """One sentence for each knob that is asked for but that no point uses."""
        never = [next(iter(each.values())) for key, each in self._unused.items() if key not in self._used]
        return [f"{quoted(word)} is not used by {why.by}: {why.remedy}" for word, why in never]

    @property
    def notes(self) -> list[str]:
        """One sentence for each knob that only some points use."""
        return [f"{key} is not used by {by}" for key, each in self._unused.items() if key in self._used for by in each]


def _changed(config: Config, not_here: Iterable[str]) -> dict[str, str]:
    """Return the unused knobs that do not have their defaults, for example by a file, as overrides."""
    found = {}
    for unused_key in not_here:
        group = _group(unused_key)
        if group not in GROUPS:
            if (value := getattr(config, group)) != _base()[group]:
                found[group] = f"{group}={value}"
        elif unused_key == group and _name(config, group) != _name_of(_default_option(group)):
            found[group] = f"{group}={_name(config, group)}"
        elif _is_ours(config, group):
            keys = [unused_key] if unused_key != group else [f"{group}.{knob}" for knob in vars(getattr(config, group))]
            for key in keys:
                value = vars(getattr(config, group))[key.partition(".")[2]]
                if value != _default(config, key):
                    found[key] = f"{key}={value}"
    return found


def _group(key: str) -> str:
    return key.partition(".")[0]


def _name_of(node: Any) -> str:
    keys = node if isinstance(node, dict) else vars(node)
    return str(keys.get("name", keys.get("mode")))


def _name(config: Config, group: str) -> str:
    """Return the name of the option that was chosen of a group."""
    return _name_of(getattr(config, group))


def is_ours(group: str, option: str) -> bool:
    """Return whether an option is one of microp's own; of a user's own option every knob counts."""
    return option in _options(group)


def _is_ours(config: Config, key: str) -> bool:
    """Return whether a key, or a group, is of one of microp's own options."""
    group, _, knob = key.partition(".")
    option = _name(config, group)
    return is_ours(group, option) and (not knob or knob in own_option(group, option))


def _default(config: Config, key: str) -> Any:
    return default_values(_group(key), _name(config, _group(key)))[key.partition(".")[2]]


def _default_option(group: str) -> Any:
    """Return the settings of the option that a group has if none is chosen."""
    return _settings(group, _defaults()[group])


def _settings(group: str, option: str) -> Any:
    """Return the settings of one of microp's options; a dictionary for a group of builders."""
    keys = default_values(group, option)
    return keys if "builder" in keys else schema_of(group, keys)(**keys)


def default_values(group: str, option: str) -> dict[str, Any]:
    """Return the keys of one of microp's options with the values that they have beside the default options."""
    return copy.deepcopy(_resolved(group, option))


@cache
def _resolved(group: str, option: str) -> dict[str, Any]:
    others = {"device": {"name": _defaults()["device"]}}
    values = OmegaConf.to_container(OmegaConf.create({**others, "values": own_option(group, option)}), resolve=True)
    assert isinstance(values, dict)
    return dict(values["values"])


@cache
def own_option(group: str, option: str) -> dict[str, Any]:
    """Return the keys of one of microp's options as its file has them; none of a user's own option."""
    if not is_ours(group, option):
        return {}
    file = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{option}.yaml"), resolve=False)
    assert isinstance(file, dict)
    keys: dict[str, Any] = {}
    for base in file.pop("defaults", ["_self_"]):
        keys |= {str(key): value for key, value in file.items()} if base == "_self_" else own_option(group, base)
    return keys


@cache
def _options(group: str) -> frozenset[str]:
    """Return the names of microp's own options of a group."""
    return frozenset(path.stem for path in (CONF / group).glob("*.yaml"))


@cache
def _defaults() -> dict[str, str]:
    """Return the option that each group has if none is chosen."""
    defaults = _base()["defaults"]
    return {group: option for each in defaults if isinstance(each, dict) for group, option in each.items()}


@cache
def _base() -> dict[str, Any]:
    """Return what a configuration has if nothing is chosen."""
    base = OmegaConf.to_container(OmegaConf.load(CONF / "base.yaml"))
    assert isinstance(base, dict)
    return {str(key): value for key, value in base.items()}
