"""Predicts a run before it starts, its step, its bubble and its memory, and finds the profile that has the times.

::

    device=emulated                nominal times ─────────────────┐
    device=emulated profile=FILE   a profile, also of elsewhere ──┤
    profile=FILE                   a profile, also of elsewhere ──┼─► predicted.json, dry runs, partitions, plans
    else                           the profile of this machine ───┘

An emulated device's actions last their nominal times, or those of a profile that is named. Without such a profile the
optimizer and the engine between two actions take this machine's time: a part of the prediction if this machine has a
profile of the model; else they are left out, and the step takes about a millisecond longer than predicted.

Without a profile only the memory is predicted, because it does not depend on the machine: one layer of each kind is
run on the CPU. What that shows is kept in files, one per question (model, rows, kind of backward, torch and code), so
that a later command needs no torch for it::

    $XDG_CACHE_HOME or ~/.cache
    └─ microp/layer-memory/<hash>.json
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any

from microp import profiling, settings
from microp.config.config import options_folder
from microp.config.schema import Config, default_options, default_values, is_fixed
from microp.job import Job, Workload, workload_of
from microp.planner import EstimatedPrices, NominalPrices, Prices, ProfilePrices
from microp.records import ProfileError, WriteError, find_profile, read_profile, write_text
from microp.schedule import Schedule
from microp.simulator import MOST_ROWS, WORK, LayerMemory, Size
from microp.system import PACKAGE, override, processor

BUSY = 0.25  # the spread of a profile whose predictions may be far off
MEASURES = ("device", "model", "settings", "simulator")  # the packages whose code a measurement of memory depends on
_known: dict[str, tuple[LayerMemory, ...]] = {}  # the memory of layers that this process has asked for before


def asked_workload(config: Config, schedule: Schedule, sizes: Sequence[int] = ()) -> Workload:
    """Return the workload of a configuration's first replica; `sizes`: the number of layers of each stage."""
    return workload_of(config, schedule, sizes, config.comms.backend(config.device))


# --- profiles ---------------------------------------------------------------------------------------


def machine_of(device: str, threads: int) -> profiling.Machine:
    """Return the kind of this machine, whose processor is the first GPU if that is what computes."""
    name = processor()
    if device == "cuda":
        import torch  # takes half a second, and only this needs it

        name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return profiling.Machine(device, name, os.cpu_count() or 1, version("torch"), threads)


def _this_machine(config: Config) -> profiling.Machine:
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
        if problem := _emulation_problem(config, profile):
            return [problem]
    elif why := profiling.model_problem(profile, config.model, config.computing):
        return [f"profile={config.profile} is of another model: {why}"]
    if profile.optimizer_kind != (kind := config.optimizer.kind):
        return [
            f"profile={config.profile} has the time of {profile.optimizer_kind}, this run has {kind}: "
            f"{profile_command(config)} measures it"
        ]
    return []


def _emulation_problem(config: Config, profile: profiling.Profile) -> str | None:
    """Return why a profile cannot give an emulated device its times; the width of what really computes is free."""
    name, layers = profile.model.get("name"), profile.model.get("layers", config.model.layers)
    if (name, layers) != (config.model.name, config.model.layers):
        if name != config.model.name:  # a model of one's own may have no key `layers`
            return (
                f"profile={config.profile} is of model={name}, this run has model={config.model.name}: use model={name}"
            )
        return (
            f"profile={config.profile} is of {layers} layers, this run has {config.model.layers}: use "
            f"model.layers={layers}"
        )
    if lacking := sorted(set(config.model.kinds) - set(profile.layers)):
        return f"profile={config.profile} lacks layer {lacking[0]}: python -m microp.profile makes a whole one"
    backend = config.comms.backend(config.device)
    if config.ranks > 1 and backend not in settings.COPYING:
        return (
            f"profile={config.profile} has the time of a hop, and {backend} does not record sending times: "
            "use comms=shm or comms=threads"
        )
    return None


def times_of(config: Config, schedule: Schedule, sizes: Sequence[int]) -> settings.DeviceSettings:
    """Return the settings of the device; an emulated one has the times of the profile that the configuration names."""
    device = config.device
    if config.profile is None or not isinstance(device, settings.EmulatedSettings):
        return device
    profile, kinds = read_profile(Path(config.profile)), config.model.kinds
    workload = asked_workload(config, schedule, sizes)
    sums = config.replicas > 1 and config.sync.name not in ("torch_ddp", "compare")
    reduces = (sums or schedule.copies > 1) and device.reduce_ms is None
    backend = config.comms.backend(device)
    costs = profiling.stage_costs(profile, kinds, workload, backend, config.replicas if reduces else 1)
    layers = profile.layer_memory(kinds, bool(schedule.input_gradients))
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
        optimizer_ms=_rounded(profiling.optimizer_times(profile, workload, layers)),
        per=[],
    )


def uneven_rows(config: Config, workload: Workload) -> list[str]:
    """Return that nominal times are of the mean microbatch, if they count rows and microbatches differ in them."""
    least, most = min(workload.rows), max(workload.rows)
    if least == most or config.profile is not None or "row" not in getattr(config.device, "per", ()):
        return []
    return [
        f"microbatches have {most} or {least} rows: what is predicted, and formulas, take the mean, steps the real ones"
    ]


def doubt(profile: profiling.Profile) -> str | None:
    """Return why the times of a profile may be far off; None if nothing speaks for it."""
    if not profile.tells_memory:  # of a trace, whose steps were compared when it was read
        return None
    spreads = profile.spread
    if unknown := [name for name, spread in spreads.items() if spread is None]:
        return (
            f"{profile.path} has fewer than {profiling.FEWEST} steps behind its times ({', '.join(unknown)}): how far "
            "they are off is not known, so measure longer (python -m microp.profile seconds=...)"
        )
    if (most := max(filter(None, spreads.values()), default=0)) > BUSY:
        return (
            f"the times of {profile.path} spread by {most:.0%}, and predictions can be as far off: the machine was "
            "busy, or shares its cores with others that cannot be seen from here; measure again when nothing else runs"
        )
    if not all(map(any, zip(*(layer["forward"] for layer in profile.layers.values()), strict=True))):
        return (
            f"{profile.path} has an F of no time at all: the layers are too small for the machine's clock, or it was "
            "busy; take larger layers or more rows (model.dim, batch_size), or measure again"
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
        f"microbatches of {count:g} {'row' if count == 1 else 'rows'} are outside of what {profile.path} was measured "
        f"with, {least:g} to {most:g}: times are extrapolated"
        for count in rows
        if not least <= count <= most
    ]


def _rounded(times: Sequence[float]) -> list[float]:
    return [round(time, 6) for time in times]


def profile_for(config: Config) -> profiling.Profile | None:
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
    if config.engine.name == profiling.TORCH and not config.device.is_emulated:
        backend = profiling.TORCH
    if (profile := used_profile(config)) is not None:
        return ProfilePrices(profile, kinds, config.device, backend)
    if not config.device.is_emulated:
        return EstimatedPrices(config.device, config.model)
    return NominalPrices(config.device, profile_for(config), kinds, backend)


def used_profile(config: Config) -> profiling.Profile | None:
    """Return the profile that has the times of the configuration's actions; None if they are nominal or not known."""
    return None if config.device.is_emulated and config.profile is None else profile_for(config)


def profile_command(config: Config, program: str = "profile", *typed: str) -> str:
    """Return the command that measures the configuration's model, or `plan` with words of it that plans for it."""
    by_kind = ("name", "momentum")  # what the time of an optimizer's step depends on
    optimizer = {key: value for key, value in asdict(config.optimizer).items() if key in by_kind}
    words, asked = [*typed], {"model": config.model.asked, "optimizer": optimizer}
    if program == "plan":
        words += [override("profile", config.profile)] if config.profile else []
        asked["device"] = asdict(replace(config.device, memory_gib=None, speed=None))
    for group, keys in asked.items():
        defaults = default_values(group, keys["name"])
        given = {key: value for key, value in keys.items() if not is_fixed(group, key) and defaults.get(key) != value}
        words += [override(group, keys["name"])] if keys["name"] != default_options()[group] else []
        words += [override(f"{group}.{key}", value) for key, value in given.items()]
    words += [*config.computing.words, f"batch_size={config.batch_size}"]
    words += [override("output_dir", config.output_dir)] if config.output_dir != "outputs" else []
    return shlex.join(["python", "-m", f"microp.{program}", *options_folder(), *words])


def lacks_profile(config: Config, job: Job) -> str | None:
    """Return what to type so that a run like this is predicted; None if it is predicted, or cannot be."""
    if job.device.is_emulated or config.compile or profile_for(config) is not None:
        return None
    command = profile_command(config)
    return f"no profile of this model on this machine, so its times are not predicted: {command} makes one"


# --- predictions ------------------------------------------------------------------------------------


def predict(config: Config, job: Job) -> profiling.Forecast:
    """Return what is known of a run before it starts."""
    forecast = _forecast(config, job)._replace(at_peak_ms=_at_peak_ms(config, job))
    if job.device.is_emulated:  # it computes with this model, which may stand in for the profile's
        profile = read_profile(Path(config.profile)) if config.profile else None
        other = None if profile is None else profiling.model_problem(profile, config.model, config.computing)
        return forecast._replace(peak_memory_mib=None if other else _peaks(job), stand_in=other)
    if job.engines[0] == profiling.TORCH:  # torch's runtime keeps other tensors
        return forecast._replace(peak_memory_mib=None)
    return forecast if forecast.peak_memory_mib else forecast._replace(peak_memory_mib=_peaks(job))


def _at_peak_ms(config: Config, job: Job) -> float | None:
    """Return what a step's operations take at the peak of all ranks."""
    profile, model = None if job.device.is_emulated else profile_for(config), job.model
    flops = job.batch_size * sum(sum(model.work(layer)[:2]) for layer in range(model.layers))
    return flops / profile.peak_gflops / job.processes / 1e6 if profile and profile.peak_gflops and flops else None


def predicted_seconds(config: Config, job: Job) -> float | None:
    """Return the predicted time of all steps of a run; None if it is not known."""
    step_ms = _forecast(config, job).step_ms
    return None if step_ms is None else step_ms / 1e3 * len(list(job.phases()))


def _forecast(config: Config, job: Job) -> profiling.Forecast:
    """Return what the prices tell; nothing if torch runs the job, and its time between actions is not known."""
    if job.engines[0] == profiling.TORCH and not job.device.is_emulated:
        profile = profile_for(config)
        if profile is None or profiling.TORCH not in profile.transports:
            return profiling.Forecast(None, None, None, "no profile")
    return prices_of(config).forecast(job.workload, job.model.batch_bytes(job.shares[0]), job.replicas)


def _peaks(job: Job) -> list[float] | None:
    """Return each rank's peak in MiB, as the order gives it; None if the model is too large to be built here."""
    try:
        return order_peaks(job.model, job.computing, job.workload, job.shares[0])
    except ValueError:
        return None


def order_peaks(
    model: settings.ModelSettings, computing: settings.Computing, workload: Workload, rows: int
) -> list[float]:
    """Return each rank's peak in MiB, as the order gives it; `rows`: of the batch of a replica. Raises as below."""
    schedule, mean = workload.schedule, workload.mean_rows
    layers = layer_memory(model, mean, bool(schedule.input_gradients), computing, schedule.slices)
    return profiling.peak_memory_mib(workload, layers, model.batch_bytes(rows))


def layer_memory(
    model: settings.ModelSettings, rows: float, split: bool, computing: settings.Computing, slices: int = 1
) -> tuple[LayerMemory, ...]:
    """Return the memory of every layer for microbatches of `rows` rows; `split`: with a backward divided into I and W.

    ValueError: the model is too large to be built and measured, or a layer fails.
    """
    work = min(model.work(kind)[0] for kind in model.kinds) / 2
    rows = max(2, ceil(min(rows, MOST_ROWS, WORK / max(1, work))))  # more, or a part of one, are not measured
    question = repr((model, rows, split, computing, slices))
    if question not in _known:
        is_ours = not isinstance(model, settings.OwnSettings)  # a user's function may use other files than its own
        kinds = _read_kept(question) if is_ours else None
        if kinds is None:
            from microp.device import probe_layers  # torch, which nothing else here needs

            layers = probe_layers(model, rows, split, computing, slices)
            kinds = {kind: layers[kind] for kind in model.kinds}
            if is_ours:
                with suppress(OSError, RuntimeError, WriteError):  # a home that is not there or cannot be written
                    _path(question).parent.mkdir(parents=True, exist_ok=True)
                    write_text(_path(question), json.dumps(kinds))
        _known[question] = tuple(kinds[kind] for kind in model.kinds)
    return _known[question]


def _path(question: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(f"{question} {_code()}".encode()).hexdigest()[:16]
    return folder / "microp" / "layer-memory" / f"{name}.json"


@cache
def _code() -> str:
    """Return torch's version, and a digest of microp's code that measures memory."""
    files = sorted(path for name in MEASURES for path in (PACKAGE / name).glob("*.py"))
    return f"{version('torch')} {hashlib.sha256(b''.join(path.read_bytes() for path in files)).hexdigest()}"


def _read_kept(question: str) -> dict[int, LayerMemory] | None:
    """Return the memory that was kept of layers, by their kind; None if there is no such file, or no home."""
    try:
        kept = json.loads(_path(question).read_text())
    except (OSError, RuntimeError, ValueError):
        return None
    return {int(kind): _as_memory(*values) for kind, values in kept.items()}


def _as_memory(weights: int, *values: Any) -> LayerMemory:
    *sizes, later, common, is_idle = values
    slices = tuple(_as_memory(*each) for each in later)
    return LayerMemory._make([weights, *(Size(*size) for size in sizes), slices, common, is_idle])
