"""The typed form of a configuration: the keys of a run and of a price, and the class of each group's options.

::

    conf/device/emulated.yaml ──► EmulatedSettings   OPTIONS["device"]["emulated"]
    conf/base.yaml            ──► Config

Defaults are only in `conf/`. The options of most groups are dataclasses of `microp.settings`;
`schedule`, `partition` and a user's own model name a builder, whose signature is the schema of their keys. A
new one is therefore a function and a YAML file.

To Hydra a group is a dictionary that takes any key, because the points of a sweep may have options with different
keys. `config` types a group once its option is known, and tells which keys the option does not have.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Annotated, Any, get_origin, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf

from microp import settings
from microp.planner import ORDERS
from microp.settings import LOWERED, Checkpointing, Computing, Line, OneOf, Positive, Range
from microp.system import CONF

MOST = 1_000_000  # steps, or microbatches of a step: memory holds their rows and actions


@dataclass
class Config:
    """The configuration of one run. The first sentence about a key is its line in `--help`."""

    # K, the length of the pipeline; each rank is one process with one device
    ranks: Annotated[int, Range(1, 10_000)] = MISSING
    chunks: Annotated[int, Range(1, MOST)] = MISSING  # M, the number of microbatches of a step
    replicas: Annotated[int, Range(1, 10_000)] = MISSING  # data-parallel copies of the pipeline
    # rows of a batch, which one optimizer step consumes (mlp: 8192; gpt: 32; others, and emulated devices: 256)
    batch_size: Annotated[int, Range(1, 1_000_000_000)] = MISSING
    steps: Annotated[int, Range(1, MOST)] = MISSING  # measured steps
    # steps before them, which are recorded but not used by any figure
    warmup_steps: Annotated[int, Range(0, MOST)] = MISSING
    # the learning rate of the optimizer
    learning_rate: Annotated[float, Positive(1_000_000, "use for example 0.001")] = MISSING
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] = MISSING  # the seed of weights, batches and dropout
    # bf16: products in bf16 by autocast, weights and their gradients in float32; null: all in model.dtype
    dtype: Annotated[str | None, OneOf(*LOWERED)] = MISSING
    compile: bool = MISSING  # compile the layers of each stage with torch.compile, before the first step
    # the number of the launch; repeat=0,1,2 runs the same question three times
    repeat: Annotated[int, Range(0, 1_000_000)] = MISSING
    # refuse a schedule in which a rank holds more (stage, microbatch) pairs at once, from F to B or W;
    # null: no limit
    activation_limit: Annotated[int | None, Range(1, 1_000_000_000, "null for none")] = MISSING
    skip: bool = MISSING  # leave this point out of a sweep (-m), if not every point of the product is wanted
    again: bool = MISSING  # also run the points of a sweep (-m) that are finished already
    # print the points, what is finished, how long the others would take and what is invalid; run nothing
    dry_run: bool = MISSING
    fail_fast: bool = MISSING  # stop a sweep (-m) at its first failed point
    # let a launcher run points at the same time on this machine (hydra/launcher=joblib), although their times are
    # then those of shared cores
    parallel: bool = MISSING
    # the folder for everything that is written
    output_dir: Annotated[str, Line("give a folder, for example outputs")] = MISSING
    # the file of a profile to predict from, also one of another machine; null: that of this machine, if any
    profile: Annotated[str | None, Line("give a file, or null")] = MISSING
    model: Any = MISSING  # `ModelSettings`; OmegaConf has the keys of a builder of one's own as a dictionary
    partition: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    checkpointing: Checkpointing = MISSING
    optimizer: settings.OptimizerSettings = MISSING
    engine: settings.EngineSettings = MISSING
    sync: settings.SyncSettings = MISSING
    data: settings.DataSettings = MISSING
    device: settings.DeviceSettings = MISSING
    comms: settings.CommsSettings = MISSING
    tracking: settings.TrackingSettings = MISSING
    launch: settings.LaunchSettings = MISSING
    snapshot: settings.SnapshotSettings = MISSING

    @property
    def computing(self) -> Computing:
        """How the layers compute."""
        return Computing(self.dtype, self.compile)


GROUPS = tuple(
    key for key, kind in get_type_hints(Config).items() if is_dataclass(kind) or get_origin(kind) is dict or kind is Any
)


def is_fixed(group: str, key: str) -> bool:
    """Return whether a key of an option says which one it is, so that it is no knob."""
    return key in ("name", "builder") or (group, key) in (("tracking", "mode"), ("checkpointing", "spare_last"))


@dataclass
class CostsConfig:
    """Costs given by hand, in one unit: of a microbatch on a rank, shared by its stages, or lists, one per stage."""

    forward: Any = MISSING  # F; null: an emulated device's times, else F = I = W = 1 on an average rank
    backward: Any = MISSING  # I, the input gradient; without `weight` the full backward B, of which I and W are halves
    weight: Any = MISSING  # W, the weight gradient
    pair: Any = MISSING  # a pair of a forward and a backward; null: one after the other
    recompute: Any = MISSING  # what a recomputation adds to B; null: forward
    latency: Any = MISSING  # of a hop between two ranks
    boundary: Any = MISSING  # bytes of the tensor that enters a stage
    bandwidth: Any = MISSING  # bytes per unit of time; null: infinite
    reduction: Any = MISSING  # the sum of the gradients over the replicas, after a stage's last gradient
    per_microbatch: Any = MISSING  # for each microbatch the factor of its times and bytes; null: 1
    per_slice: Any = MISSING  # for each slice its part of its microbatch's times, in any unit; null: all alike
    transfer: str = MISSING  # how a hop is charged: asynchronous, sender_busy, serial_link or rendezvous

    def numbers(self) -> dict[str, Any]:
        """Return all values except `transfer`, the rule by which a hop is charged."""
        return {key: value for key, value in vars(self).items() if key != "transfer"}


@dataclass
class SimulateConfig(Config):
    """A run's configuration and the keys that only a price needs."""

    costs: CostsConfig = MISSING
    output: Annotated[str, OneOf("text", "json")] = MISSING  # text, or json, which prints only one object per point


@dataclass
class ProfileConfig(Config):
    """A run's configuration and the key that only a profile needs."""

    seconds: Annotated[float, Positive(3600, "use for example 60")] = MISSING  # how long to measure a model


@dataclass
class SearchConfig:
    """How an order is searched for."""

    # how long rules and small moves may take
    seconds: Annotated[float, Positive(100_000, "use for example 10")] = MISSING
    # the time limit of OR-Tools' CP-SAT, which follows; 0: without it
    solver_seconds: Annotated[float, Range(0, 100_000)] = MISSING
    # where the order is written; the file must not exist
    file: Annotated[str, Line("give a file, for example order.txt")] = MISSING


@dataclass
class OrderConfig(SimulateConfig):
    """The keys of a price, and those that only a search for an order needs."""

    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] = MISSING  # the seed of the search's random moves
    search: SearchConfig = MISSING


@dataclass
class SpaceConfig:
    """What a plan chooses from: lists, of which it tries the product."""

    # options of group schedule; by default all but naive and file
    schedule: Annotated[list[str], OneOf(*ORDERS, otherwise="microp.simulate for another one")] = MISSING
    chunks: Annotated[list[int] | None, Range(1, MOST)] = MISSING  # numbers of microbatches, by default powers of two
    partition: Annotated[list[str], OneOf("uniform", "balanced")] = MISSING  # uniform, balanced or both
    checkpointing: list[str] = MISSING  # never, except_last, always, segments=2 and so on
    # of interleaved, breadth_first, zb_interleaved and gis; of seq_1f1b also 1
    stages_per_rank: Annotated[list[int], Range(1, 1000)] = MISSING
    # of seq_1f1b, along the sequence; by default 2 and 4, if the model has slices
    slices: Annotated[list[int] | None, Range(1, 1000)] = MISSING
    group: Annotated[list[int] | None, Range(1, 10_000)] = MISSING  # of those that have it, by default their own
    warmup: Annotated[list[str] | None, OneOf("double", "single")] = MISSING  # of interleaved, by default double
    replicas: Annotated[list[int], Range(1, 10_000)] = MISSING  # into how many pipelines the ranks are divided


@dataclass
class PlanConfig(Config):
    """A run's configuration and the keys that only a plan needs."""

    # the memory of each rank, in GiB; null: that of the device
    memory_gib: Annotated[float | None, Positive(1_000_000, "use for example 16, or null for no limit")] = MISSING
    search: SpaceConfig = MISSING  # what is chosen from


# The classes of the options of a group, by the name of the option; `None`: of all others.
OPTIONS: dict[str, dict[str | None, type]] = {
    "model": {"mlp": settings.MlpSettings, "gpt": settings.GptSettings},
    "data": {"text": settings.TextSettings, "tokens": settings.TokenSettings, "synthetic": settings.SyntheticSettings},
    "checkpointing": {None: Checkpointing},
    "optimizer": {"sgd": settings.SgdSettings, None: settings.AdamSettings},
    "engine": {None: settings.EngineSettings},
    "sync": {"naive": settings.SyncSettings, "flat": settings.SyncSettings, None: settings.BucketSettings},
    "device": {
        "cpu": settings.DeviceSettings,
        "cuda": settings.CudaSettings,
        "emulated": settings.EmulatedSettings,
        "estimate": settings.EstimateSettings,
    },
    "comms": {None: settings.CommsSettings},
    "tracking": {None: settings.TrackingSettings},
    "launch": {"elastic": settings.LaunchSettings, "slurm": settings.SlurmSettings},
    "snapshot": {None: settings.SnapshotSettings},
}
KINDS: dict[str, type[Config]] = {  # the configurations of the commands, by the name of their schema
    "config": Config,
    "simulate": SimulateConfig,
    "profile": ProfileConfig,
    "order": OrderConfig,
    "plan": PlanConfig,
}


def schema_of(group: str, keys: dict[str, Any]) -> type:
    """Return an option's settings class: of a user's own, one of which it has all keys; else raise ValueError."""
    options, name = OPTIONS.get(group, {}), str(keys.get("name"))
    if known := options.get(name) or options.get(None):
        return known
    fitting = [kind for kind in options.values() if {field.name for field in fields(kind)} <= keys.keys()]
    if not fitting:
        names = ", ".join(map(str, options))
        raise ValueError(f"{group}.name={name} is not one of {names}: use one of these, or a builder")
    return max(fitting, key=lambda kind: len(fields(kind)))


def open_schema(kind: type[Config]) -> DictConfig:
    """Return the form of a configuration for Hydra: its own keys with their types, and groups that take any key."""
    group: Any = dict[str, Any]
    keys = [
        (key, group, field(default_factory=dict)) if key in GROUPS else (key, hint, field(default=MISSING))
        for key, hint in get_type_hints(kind).items()
    ]
    node = OmegaConf.structured(make_dataclass(kind.__name__, keys))
    assert isinstance(node, DictConfig)
    for key in GROUPS:
        OmegaConf.set_struct(node[key], False)
    return node


def all_keys() -> list[str]:
    """Return every key of every command's configuration, with those of microp's own options: `device.forward_ms`."""
    keys = {field.name for kind in KINDS.values() for field in fields(kind)}
    for group, options in OPTIONS.items():
        keys |= {f"{group}.{field.name}" for kind in options.values() for field in fields(kind)}
    for group in GROUPS:
        keys |= {f"{group}.{key}" for option in options_of(group) for key in values_of(f"{group}/{option}")}
    return sorted(keys)


# --- what the files of conf/ hold -------------------------------------------------------------------


@cache
def values_of(name: str) -> dict[str, Any]:
    """Return what a file of `conf/` has, with its interpolations as they stand: `base`, `schedule/1f1b`."""
    values = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=False)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def default_options() -> dict[str, str]:
    """Return the option that each group has if none is chosen."""
    choices = [choice for choice in values_of("base")["defaults"] if choice != "_self_"]
    return {group: option for choice in choices for group, option in choice.items()}


@cache
def options_of(group: str) -> tuple[str, ...]:
    """Return the names of microp's own options of a group."""
    return tuple(sorted(path.stem for path in (CONF / group).glob("*.yaml")))


def default_values(group: str, option: str) -> dict[str, Any]:
    """Return the keys of one of microp's options with their values beside the default options; none of a user's own."""
    return copy.deepcopy(_values_of_option(group, option)) if option in options_of(group) else {}


@cache
def _values_of_option(group: str, option: str) -> dict[str, Any]:
    file = dict(values_of(f"{group}/{option}"))
    keys: dict[str, Any] = {}
    for base in file.pop("defaults", ["_self_"]):
        keys |= file if base == "_self_" else default_values(group, base)
    beside = {"device": {"name": default_options()["device"]}}
    resolved: Any = OmegaConf.to_container(OmegaConf.create({**beside, "keys": keys}), resolve=True)
    return dict(resolved["keys"])


def default_settings(group: str, option: str) -> Any:
    """Return the settings of one of microp's options; a dictionary for a group of builders."""
    keys = default_values(group, option)
    return keys if "builder" in keys else schema_of(group, keys)(**keys)
