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
run on the CPU. What that shows is kept in files, one per question (model, rows, kind of backward, torch and code), so
that a later command needs no torch for it::

    $XDG_CACHE_HOME or ~/.cache
    └─ microp/layer-memory/<hash>.json
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from microp.config.profiles import prices_of, profile_command, profile_for
from microp.config.schema import Config
from microp.job import Job
from microp.profiling import TORCH, Forecast, peak_memory_mib
from microp.records import WriteError, write_text
from microp.settings import ADAM, Computing, ModelSettings, OwnSettings
from microp.simulator import MOST_ROWS, LayerMemory, Size
from microp.system import PACKAGE

MEASURES = ("device", "model", "settings", "simulator")  # the packages whose code a measurement depends on
_known: dict[str, tuple[LayerMemory, ...]] = {}  # what this process has asked before


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
    """Return each rank's peak in MiB, as the order gives it; None if the model is too large to be built here."""
    try:
        layers = layer_memory(job.model, job.mean_rows, bool(job.schedule.split), job.computing)
    except ValueError:
        return None
    return peak_memory_mib(job.workload, layers, batch_bytes(job))


def layer_memory(model: ModelSettings, rows: float, split: bool, computing: Computing) -> tuple[LayerMemory, ...]:
    """Return the memory of every layer for microbatches of `rows` rows; `split`: with a backward divided into B and W.

    ValueError: the model is too large to be built and measured, or a layer fails.
    """
    rows = min(rows, MOST_ROWS)
    question = repr((model, rows, split, computing))
    if question in _known:
        return _known[question]
    kinds, path = model.kinds, _path(question)
    own = isinstance(model, OwnSettings)  # its function may use other files than its own
    layers = {} if own else _read_kept(path)
    if not layers.keys() >= set(kinds):
        from microp.device import probe_layers  # torch, which nothing else here needs

        probed = probe_layers(model, rows, split, computing)
        layers = {kind: probed[kind] for kind in kinds}
        with suppress(OSError, RuntimeError, WriteError):  # a home that is not there or cannot be written
            if not own:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps(layers))
    _known[question] = tuple(layers[kind] for kind in kinds)
    return _known[question]


@cache
def _code() -> str:
    """Return a digest of microp's code that measures memory, and of torch's version."""
    torch = find_spec("torch")
    assert torch is not None, "torch is installed"
    assert torch.origin is not None, "torch is a package"
    files = [Path(torch.origin).with_name("version.py")]
    files += sorted(path for name in MEASURES for path in (PACKAGE / name).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _path(question: str) -> Path:
    with suppress(RuntimeError):  # there is no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return (
            cache
            / "microp"
            / "layer-memory"
            / f"{hashlib.sha256(f'{question} {_code()}'.encode()).hexdigest()[:16]}.json"
        )
    return Path(os.devnull, "none")


def _read_kept(path: Path) -> dict[int, LayerMemory]:
    """Return the memory that was kept of layers, by their index."""
    try:
        found = json.loads(path.read_text())
        return {
            int(index): LayerMemory(values[0], *(Size(*size) for size in values[1:])) for index, values in found.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
