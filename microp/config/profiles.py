"""Finds the profile that a configuration is predicted from, and what it says: prices, an emulated device's times.

::

    profile=FILE                   a profile, also of elsewhere ─┐
    else                           this machine's, if any ───────┴─► prices: predictions, balanced partitions, plans
    device=emulated profile=FILE   ────────────────────────────────► how long an emulated device's actions last
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from microp.config.composing import typed_folder
from microp.config.knobs import default_batch_size, default_values
from microp.config.schema import Config, is_fixed
from microp.job import Workload
from microp.planner import EstimatedPrices, NominalPrices, Prices, ProfilePrices
from microp.profiling import (
    FEWEST,
    TORCH,
    Machine,
    Profile,
    model_problem,
    optimizer_times,
    stage_costs,
)
from microp.records import ProfileError, find_profile, read_profile
from microp.schedule import Schedule, spread
from microp.settings import (
    ADAM,
    COPYING,
    DeviceSettings,
    EmulatedSettings,
    Holds,
    SgdSettings,
    transport_holds,
)
from microp.system import override, processor

BUSY = 0.25  # the spread of a profile whose predictions may be far off


def machine_of(device: str, threads: int) -> Machine:
    """Return the kind of this machine, whose processor is the first GPU if that is what computes."""
    name = processor()
    if device == "cuda":
        import torch  # takes half a second, and only this needs it

        name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return Machine(device, name, os.cpu_count() or 1, version("torch"), threads)


def _this_machine(config: Config) -> Machine:
    device = "cpu" if config.device.is_emulated else config.device.name  # an emulated device only waits beside it
    return machine_of(device, config.device.threads)


def profile_problems(config: Config) -> list[str]:
    """Return what is wrong with the profile that the configuration names, one sentence each."""
    if config.profile is None:
        return []
    try:
        profile = read_profile(Path(config.profile))
    except ProfileError as error:
        return [str(error)]
    if config.device.is_emulated:
        found = _emulation_problems(config, profile)
    else:
        why = model_problem(profile, config.model, config.computing)
        found = [f"profile={config.profile} is of another model: {why}"] if why else []
    kind = config.optimizer.kind
    if not found and profile.optimizer_kind != kind:
        found = [
            f"profile={config.profile} has the time of {profile.optimizer_kind}, this run has {kind}: "
            f"{profile_command(config)} measures it"
        ]
    return found


def _emulation_problems(config: Config, profile: Profile) -> list[str]:
    """Return why a profile cannot give an emulated device its times; the width of what really computes is free."""
    name, layers = profile.model.get("name"), profile.model.get("layers", config.model.layers)
    if (name, layers) != (config.model.name, config.model.layers):
        return [
            f"profile={config.profile} is of model={name} with {layers} layers, this run has model={config.model.name} "
            f"with {config.model.layers}: use model={name} model.layers={layers}"
        ]
    if lacking := sorted(set(config.model.kinds) - set(profile.layers)):
        return [f"profile={config.profile} lacks layer {lacking[0]}: python -m microp.profile makes a whole one"]
    backend = config.comms.backend(config.device)
    if config.ranks > 1 and backend not in COPYING:
        return [
            f"profile={config.profile} has the time of a hop, and {backend} does not record sending times: "
            "use comms=shm or comms=threads"
        ]
    return []


def times_of(config: Config, schedule: Schedule, sizes: Sequence[int]) -> DeviceSettings:
    """Return the settings of the device; an emulated one has the times of the profile that the configuration names."""
    device = config.device
    if config.profile is None or not isinstance(device, EmulatedSettings):
        return device
    profile, kinds = read_profile(Path(config.profile)), config.model.kinds
    workload = Workload(schedule, tuple(sizes), rows_of_first_replica(config), config.checkpointing)
    reduces = config.replicas > 1 and device.reduce_ms is None and config.sync.name not in ("torch_ddp", "compare")
    backend = config.comms.backend(device)
    costs = stage_costs(profile, kinds, workload, backend, config.replicas if reduces else 1)
    layers = profile.layer_memory(kinds, bool(schedule.split))
    return replace(
        device,
        forward_ms=_rounded(costs.forward),
        backward_ms=_rounded(costs.backward),
        weight_ms=_rounded(costs.weight) or None,
        full_ms=_rounded(costs.full) or None,
        recompute_ms=_rounded(costs.recompute) or None,
        latency_ms=round(costs.latency, 6),
        reduce_ms=_rounded(costs.reduction) if reduces else device.reduce_ms,
        overhead_ms=round(max(costs.overhead), 6),
        optimizer_ms=_rounded(optimizer_times(profile, workload, layers)),
        per=[],
    )


def doubt(profile: Profile) -> str | None:
    """Return why the times of a profile may be far off; None if nothing speaks for it."""
    unknown = [name for name, spread in profile.spread.items() if spread is None]
    if unknown:
        return (
            f"{profile.path} has fewer than {FEWEST} steps behind its times ({', '.join(unknown)}): how far they are "
            "off is not known, so measure longer (python -m microp.profile seconds=...)"
        )
    if (most := max((spread for spread in profile.spread.values() if spread is not None), default=0)) > BUSY:
        return (
            f"the times of {profile.path} spread by {most:.0%}, and predictions can be as far off: the machine was "
            "busy, or shares its cores with others that cannot be seen from here; measure again when nothing else runs"
        )
    if profile.load is not None and profile.load >= 1:
        return (
            f"{profile.path} was measured beside other work (load average {profile.load:.1f}): predictions can be too "
            "slow; measure again when nothing else runs"
        )
    return None


def profile_notes(config: Config, rows: Sequence[float]) -> list[str]:
    """Return what the user should know of the profile that has the times of these rows of a microbatch, if any."""
    if profile_problems(config) or (profile := used_profile(config)) is None:
        return []
    notes = [text] if (text := doubt(profile)) else []
    if config.profile is not None and profile.machine != _this_machine(config):
        notes.append(f"{profile.path} is of another machine ({profile.machine}): the times are that machine's")
    least, most = profile.rows[0], profile.rows[-1]
    return notes + [
        f"microbatches of {each:g} rows are outside of what {profile.path} was measured with, {least:g} to {most:g}: "
        "times are extrapolated"
        for each in rows
        if not least <= each <= most
    ]


def _rounded(times: Sequence[float]) -> list[float]:
    return [round(time, 6) for time in times]


def profile_for(config: Config) -> Profile | None:
    """Return the profile that the configuration names, else this machine's of its model; None if there is none."""
    if config.profile is not None:
        return read_profile(Path(config.profile))
    machine = _this_machine(config)
    folder = Path(config.output_dir) / "profiles"
    return find_profile(folder, machine, config.model, config.batch_size, config.optimizer, config.computing)


def prices_of(config: Config) -> Prices:
    """Return the times of actions that are known for the configuration's device."""
    if config.model.problems() or profile_problems(config):
        return NominalPrices(config.device)
    kinds, backend = config.model.kinds, config.comms.backend(config.device)
    if config.engine.name == TORCH and not config.device.is_emulated:
        backend = TORCH
    if (profile := used_profile(config)) is not None:
        return ProfilePrices(profile, kinds, config.device, backend)
    if not config.device.is_emulated:
        return EstimatedPrices(config.device, config.model)
    return NominalPrices(config.device, profile_for(config), kinds, backend)


def used_profile(config: Config) -> Profile | None:
    """Return the profile that has the times of the configuration's actions; None if they are nominal or not known."""
    return None if config.device.is_emulated and config.profile is None else profile_for(config)


def rows_of_first_replica(config: Config) -> tuple[int, ...]:
    """Return the number of rows of each microbatch of the first replica."""
    return spread(spread(config.batch_size, max(config.replicas, 1))[0], max(config.chunks, 1))


def held_beside(config: Config) -> Holds:
    """Return what the configuration's transport and sums hold of the device's memory."""
    has_buckets = config.replicas > 1 and config.sync.has_buckets
    return transport_holds(config.comms.backend(config.device), config.device, has_buckets)


def profile_command(config: Config) -> str:
    """Return the command that measures the configuration's model."""
    keys = [override("model", config.model.name)] if config.model.name != "mlp" else []
    defaults = {"name": config.model.name, **default_values("model", config.model.name)}
    asked = {key: value for key, value in config.model.asked.items() if not is_fixed("model", key)}
    keys += [override(f"model.{key}", value) for key, value in asked.items() if defaults.get(key) != value]
    keys += [f"optimizer={config.optimizer.name}"] if config.optimizer.name != ADAM.name else []
    if isinstance(config.optimizer, SgdSettings) and not config.optimizer.momentum:
        keys.append("optimizer.momentum=0")
    keys += config.computing.words
    keys += [f"batch_size={config.batch_size}"] if config.batch_size != default_batch_size(config.model.name) else []
    keys += [override("output_dir", config.output_dir)] if config.output_dir != "outputs" else []
    return shlex.join(["python", "-m", "microp.profile", *typed_folder(), *keys])
