"""Predicts a run before it starts: its step, its bubble and its memory.

::

    device=emulated     nominal times ──────────────────┐
    profile=FILE        a profile, also of elsewhere ───┼─► predicted.json, dry runs, the time that a sweep takes
    else                the profile of this machine ────┘

An emulated device's actions last their nominal times, but the optimizer and the engine between two actions take the
time of this machine. They are a part of the prediction if this machine has a profile of the model; else they are left
out, and the step takes about a millisecond longer than predicted.

Without a profile only the memory is predicted, because it does not depend on the machine: one layer of each kind is
run on the CPU.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from microp import trace
from microp.app.schema import Config
from microp.job import Job
from microp.planner import (
    Forecast,
    Machine,
    Profile,
    forecast,
    last_ends,
    model_problem,
    peak_memory_mib,
    whole_step_ms,
)
from microp.settings import GptSettings, MlpSettings, ModelSettings, processor
from microp.simulator import LayerMemory, nominal_costs, simulate
from microp.store import ProfileError, find_profile, read_profile
from microp.trace import Spans


def machine_of(device: str, threads: int) -> Machine:
    """Return the kind of this machine."""
    return Machine(device, processor(), os.cpu_count() or 1, version("torch"), threads)


def profile_problems(config: Config) -> list[str]:
    """Return what is wrong with the profile that the configuration names, one sentence each."""
    if config.profile is None:
        return []
    try:
        profile = read_profile(Path(config.profile))
    except ProfileError as error:
        return [str(error)]
    why = model_problem(profile, config.model)
    return [f"profile={config.profile} is of another model: {why}"] if why else []


def profile_for(config: Config) -> Profile | None:
    """Return the profile that a run is predicted from: the named one, else this machine's; None if there is none."""
    if config.profile is not None:
        return read_profile(Path(config.profile))
    machine = machine_of(config.device.name, config.device.threads)
    return find_profile(Path(config.output_dir) / "profiles", machine, config.model, config.batch_size)


def lacks_profile(config: Config, job: Job) -> str | None:
    """Return what to type so that a run like this is predicted; None if it is predicted, or cannot be."""
    if job.is_emulated or job.replicas > 1 or job.engines[0] != "microp" or profile_for(config) is not None:
        return None
    return (
        f"no profile of this model on this machine, so its times are not predicted: {profile_command(config)} makes one"
    )


def profile_command(config: Config) -> str:
    """Return the command that measures the configuration's model."""
    keys = [f"model={config.model.name}"] if config.model.name != "mlp" else []
    defaults = _defaults(config.model.name)
    keys += [f"model.{key}={value}" for key, value in vars(config.model).items() if defaults.get(key) != value]
    keys += [f"batch_size={config.batch_size}"] if config.batch_size != 256 else []
    keys += [f"output_dir={config.output_dir}"] if config.output_dir != "outputs" else []
    return " ".join(["python -m microp.profile", *keys])


def _defaults(model: str) -> dict[str, Any]:
    from microp.app.knobs import ours

    return {"name": model, **ours().option("model", model)}


def predict(config: Config, job: Job) -> Forecast:
    """Return what is known of a run before it starts."""
    if job.is_emulated:
        step_ms, spans = _nominal(config, job)
        bubble, source = float(trace.bubble_fraction(spans)), f"the nominal times of {job.device.name}"
        return Forecast(step_ms, bubble, _peaks(job, spans), source)
    if (profile := _usable_profile(config, job)) is not None:
        return forecast(profile, job.model, job.workload, job.backend, batch_bytes(job))
    if job.engines[0] != "microp":  # torch's runtime keeps other tensors
        return Forecast(None, None, None, "no profile")
    spans = simulate(job.schedule, nominal_costs(job.device, job.workload))  # a peak depends on the order alone
    return Forecast(None, None, _peaks(job, spans), "no profile")


def predicted_seconds(config: Config, job: Job) -> float | None:
    """Return the predicted time of all steps of a run; None if it is not known."""
    if job.is_emulated:
        step_ms, _ = _nominal(config, job)
    elif (profile := _usable_profile(config, job)) is not None:
        step_ms = forecast(profile, job.model, job.workload, job.backend, batch_bytes(job)).step_ms
    else:
        step_ms = None
    return None if step_ms is None else step_ms / 1e3 * len(list(job.phases()))


def _usable_profile(config: Config, job: Job) -> Profile | None:
    """Return the profile that predicts a run on a real device; None if there is none, or nothing can."""
    return profile_for(config) if job.replicas == 1 and job.engines[0] == "microp" else None


def batch_bytes(job: Job) -> int:
    """Return the bytes of the batch on the ranks of the first and of the last stage."""
    return job.model.batch_bytes(job.shares[0])


def _nominal(config: Config, job: Job) -> tuple[float | None, Spans]:
    """Return the step on an emulated device, None if it is not known, and its simulated spans."""
    machine = machine_of("cpu", config.device.threads)  # which does everything but to wait
    profile = find_profile(Path(config.output_dir) / "profiles", machine, config.model, config.batch_size)
    costs = nominal_costs(job.device, job.workload, job.mean_rows)
    if profile is not None and job.backend in profile.transports:
        costs = replace(costs, overhead=(profile.transports[job.backend].overhead,) * job.schedule.stages)
    spans = simulate(job.schedule, costs)
    sums = trace.reductions(job.schedule, spans, costs.reduction) if costs.reduction else []
    if job.replicas > 1 and not sums:
        return None, spans  # the sums over the replicas take their real time, which is not known
    ends = last_ends(spans)
    for reduction in sums:
        ends[reduction.rank] = max(ends[reduction.rank], float(reduction.end))
    if profile is None:
        return max(ends.values()), spans
    layers = profile.layer_memory(job.model.kinds, bool(job.schedule.split))
    return whole_step_ms(profile, job.workload, layers, ends), spans


def _peaks(job: Job, spans: Spans) -> list[float] | None:
    """Return each rank's peak memory in MiB; None if the model is too large to be built here."""
    layers = _memory_of(job.model, job.mean_rows, bool(job.schedule.split))
    return None if layers is None else peak_memory_mib(job.workload, layers, spans, batch_bytes(job))


def _memory_of(model: ModelSettings, rows: float, split: bool) -> list[LayerMemory] | None:
    """Return the memory of every layer; None if the model is too large to be built here."""
    return _probed(type(model), tuple(vars(model).items()), rows, split)


@lru_cache(maxsize=64)
def _probed(kind: type, values: tuple[tuple[str, Any], ...], rows: float, split: bool) -> list[LayerMemory] | None:
    from microp.device import probe_layers

    assert issubclass(kind, MlpSettings | GptSettings)
    try:
        return probe_layers(kind(**dict(values)), rows, split)
    except ValueError:
        return None
