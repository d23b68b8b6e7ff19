"""Predicts a run before it starts: its step, its bubble and its memory.

::

    device=emulated                nominal times ─────────────────┐
    device=emulated profile=FILE   a profile, also of elsewhere ──┤
    profile=FILE                   a profile, also of elsewhere ──┼─► predicted.json, dry runs, the time of a sweep
    else                           the profile of this machine ───┘

An emulated device's actions last their nominal times, or those of a profile that is named. Without such a profile the
optimizer and the engine between two actions take this machine's time: a part of the prediction if this machine has a
profile of the model; else they are left out, and the step takes about a millisecond longer than predicted.

Without a profile only the memory is predicted, because it does not depend on the machine: one layer of each kind is
run on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from microp.app.layer_memory import layer_memory
from microp.app.profiles import prices_of, profile_command, profile_for
from microp.app.schema import Config
from microp.job import Job
from microp.planner import TORCH, Forecast, peak_memory_mib
from microp.settings import ADAM
from microp.simulator import LayerMemory


def lacks_profile(config: Config, job: Job) -> str | None:
    """Return what to type so that a run like this is predicted; None if it is predicted, or cannot be."""
    if job.is_emulated or profile_for(config) is not None:
        return None
    if config.compile:
        return "there are no profiles of compiled layers, so the times are not predicted"
    others = [*([] if config.optimizer.kind == ADAM.kind else [config.optimizer.kind]), *config.computing.words]
    what = " with ".join(["this model", *([" and ".join(others)] if others else [])])
    makes = f"{profile_command(config)} makes one"
    return f"no profile of {what} on this machine, so its times are not predicted: {makes}"


def predict(config: Config, job: Job) -> Forecast:
    """Return what is known of a run before it starts."""
    if not _is_measured(config, job):
        return Forecast(None, None, None, "no profile")
    found = prices_of(config).forecast(job.workload, batch_bytes(job), job.replicas)
    if job.engines[0] == TORCH and not job.is_emulated:
        return found._replace(peak_memory_mib=None)  # torch's runtime keeps other tensors
    if found.peak_memory_mib is not None and not job.is_emulated:
        return found
    return found._replace(peak_memory_mib=_peaks(job))  # an emulated device computes with this model, however small


def predicted_seconds(config: Config, job: Job) -> float | None:
    """Return the predicted time of all steps of a run; None if it is not known."""
    if not _is_measured(config, job):
        return None
    step_ms = prices_of(config).forecast(job.workload, batch_bytes(job), job.replicas).step_ms
    return None if step_ms is None else step_ms / 1e3 * len(list(job.phases()))


def _is_measured(config: Config, job: Job) -> bool:
    """Return whether the engine's time between actions is known; microp's is left out if there is no profile."""
    if job.engines[0] != TORCH or job.is_emulated:
        return True
    profile = profile_for(config)
    return profile is not None and TORCH in profile.transports


def batch_bytes(job: Job) -> int:
    """Return the bytes of the batch on the ranks of the first and of the last stage."""
    return job.model.batch_bytes(job.shares[0])


def _peaks(job: Job) -> list[float] | None:
    """Return each rank's peak memory in MiB, as the order gives it; None if the model is too large to be built here."""
    layers = _memory_of(job)
    return None if layers is None else peak_memory_mib(job.workload, layers, batch_bytes(job))


def _memory_of(job: Job) -> Sequence[LayerMemory] | None:
    """Return the memory of every layer; None if the model is too large to be built here, or a layer fails."""
    try:
        return layer_memory(job.model, job.mean_rows, bool(job.schedule.split), job.computing)
    except ValueError:
        return None
