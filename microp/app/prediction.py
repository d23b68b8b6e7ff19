"""Predicts a run before it starts: its step, its bubble and its memory.

::

    device=emulated     nominal times ──────────────────┐
    profile=FILE        a profile, also of elsewhere ───┼─► predicted.json, dry runs, the time that a sweep takes
    else                the profile of this machine ────┘

Without a profile only the memory is predicted, because it does not depend on the machine.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from microp import trace
from microp.app.schema import Config
from microp.job import Job
from microp.planner import Forecast, Machine, Profile, forecast, model_problem, peak_memory_mib
from microp.settings import GptSettings, MlpSettings, ModelSettings, processor
from microp.simulator import LayerMemory, nominal_costs, simulate
from microp.store import ProfileError, find_profile, read_profile


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
        return _nominal(job)
    profile = None
    if job.replicas == 1 and job.engines[0] == "microp":
        profile = profile_for(config)
    if profile is None:
        return Forecast(None, None, None, "no profile")
    return forecast(profile, job.model, job.workload, job.backend, batch_bytes(job))


def batch_bytes(job: Job) -> int:
    """Return the bytes of the batch on the ranks of the first and of the last stage."""
    return job.model.batch_bytes(job.shares[0])


def _nominal(job: Job) -> Forecast:
    """Return the prediction from an emulated device's nominal times."""
    costs = nominal_costs(job.device, job.workload, job.mean_rows)
    spans = simulate(job.schedule, costs)
    sums = trace.reductions(job.schedule, spans, costs.reduction) if costs.reduction else []
    if job.replicas > 1 and not sums:
        step_ms = None  # the sums over the replicas take their real time, which is not known
    else:
        step_ms = float(trace.ends_at(spans, sums) if sums else trace.makespan(spans))
    layers = _memory_of(job.model, job.mean_rows, bool(job.schedule.split))
    peaks = None if layers is None else peak_memory_mib(job.workload, layers, spans, batch_bytes(job))
    return Forecast(step_ms, float(trace.bubble_fraction(spans)), peaks, f"the nominal times of {job.device.name}")


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
