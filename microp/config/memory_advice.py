"""Compares a run's predicted memory with that of its ranks before it starts.

::

    device.memory_gib ── less than a rank's predicted peak ──► refused: what fills it, what would fit and its price
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microp.config.config_checks import as_run, order_problems, ranks_here, shared_cores
from microp.config.knobs import used_knobs
from microp.config.prediction import layer_memory, prices_of, profile_command, profile_problems, used_profile
from microp.config.schema import GROUPS, Config, default_options
from microp.job import Job
from microp.planner import Choice, Priced, Pricer, Subject, advice, fill_text
from microp.schedule import Schedule
from microp.settings import transport_holds
from microp.simulator import LayerMemory
from microp.system import GIB, size_text

FREE = ("per", "speed")  # lists of a device that leave the number of stages free, or that a plan has not
NO_MEMORY = "the profile is of a trace, which tells no memory of layers"


def memory_cap(config: Config) -> float | None:
    """Return the bytes of memory that each rank has, or None if they are not limited."""
    if config.device.memory_gib is not None:
        return config.device.memory_gib * GIB
    if config.device.name != "cuda":
        return None
    import torch  # takes half a second, and only a GPU needs it

    if not torch.cuda.is_available():
        return None
    on_one = -(-ranks_here(config) // torch.cuda.device_count()) if config.device.is_shared else 1
    return torch.cuda.get_device_properties(0).total_memory / on_one


def memory_problem(config: Config, job: Job) -> str | None:
    """Return why a rank's predicted peak exceeds its memory, with the changes that would fit; None if it does not."""
    cap = memory_cap(config)
    if cap is None:
        return None
    try:
        pricer, now = _priced(config, job)
    except ValueError as error:  # the model is too large to be measured
        return None if config.device.memory_gib is None else f"device.memory_gib cannot be checked: {error}"
    if now.peak <= cap:
        return None
    limit = f"device.memory_gib={cap / GIB:g}" if config.device.memory_gib is not None else f"its {size_text(cap)}"
    words = f"ranks={job.processes}", f"memory_gib={cap / GIB:.4g}"
    # times of one number of stages, microbatches or slices are those of no other plan
    is_fixed = any(isinstance(times, list) and times for key, times in vars(config.device).items() if key not in FREE)
    plan = "" if is_fixed else profile_command(replace(config, compile=False), "plan", *words)
    remedy = advice(pricer, now, cap, lambda words: _in_place(config, words), plan)
    if "step" in remedy and not pricer.subject.prices.is_known:
        remedy += "; steps are by the layers' FLOPs and bytes (microp.simulate counts uniform ones as equal)"
        if cores := shared_cores(config):
            remedy += f", of ranks with a core each, not of {config.ranks * config.replicas} on {cores}"
    return f"{_needs(pricer, job, now)}, more than {limit}: {remedy}"


def _in_place(config: Config, words: str) -> str:
    """Return the words of a change, and which options that are not the default ones, with their keys, they replace."""
    replaced = []
    for group in (word.partition("=")[0] for word in words.split()):
        name, knobs = used_knobs(config, group) if group in GROUPS else ("", [])
        if name != default_options().get(group, ""):
            replaced.append(f"{group}={name}{' and its keys' if knobs else ''}")
    return f"{words} in place of {' and '.join(replaced)}" if replaced else words


def subject_of(config: Config, devices: int, rows: float | None = None) -> Subject:
    """Return what is planned for a configuration; `rows`: of the microbatches with which its layers are measured."""
    profile = None if profile_problems(config) else used_profile(config)

    def memory(split: bool, slices: int, own: float) -> Sequence[LayerMemory]:
        if profile is not None and slices == 1:
            return profile.layer_memory(config.model.kinds, split)
        return layer_memory(config.model, rows or own, split, config.computing, slices)

    def runs(name: str, schedule: Schedule, replicas: int) -> Schedule:
        if (config.device.name == "cuda" or config.device.speed) and len(schedule.ranks) * replicas > devices:
            raise ValueError("more ranks need a GPU, or a speed, of their own")
        order = as_run(config, schedule)
        for problem in order_problems(replace(config, schedule={"name": name}, replicas=replicas), order):
            raise ValueError(problem)
        return order

    return Subject(
        layers=config.model.layers,
        devices=devices,
        batch_size=config.batch_size,
        prices=prices_of(config),
        memory=memory if profile is None or profile.tells_memory else None,
        batch_bytes=config.model.batch_bytes,
        states=config.optimizer.states,
        holds=transport_holds(config.comms.backend(config.device), config.device, config.sync.has_buckets),
        as_run=runs,
    )


def _priced(config: Config, job: Job) -> tuple[Pricer, Priced]:
    """Return a pricer, and the price of the job as it is."""
    pricer = Pricer(subject_of(config, job.processes, job.workload.mean_rows))
    if pricer.subject.memory is None:
        raise ValueError(NO_MEMORY)
    name, checkpointing = config.schedule["name"], config.checkpointing
    kept = f"segments={checkpointing.segments}" if checkpointing.name == "segments" else checkpointing.name
    partition = config.partition["name"] if config.partition["name"] in ("uniform", "balanced") else "given"
    knobs = tuple((key, value) for key, value in config.schedule.items() if type(value) is int)
    choice = Choice(name, config.chunks, kept, "given", knobs, config.replicas)
    now = pricer.forecast(pricer.add(choice, job.schedule, job.partition.sizes))
    return pricer, now._replace(choice=choice._replace(partition=partition))


def _needs(pricer: Pricer, job: Job, now: Priced) -> str:
    """Return which rank needs most memory, how much, and what fills it."""
    rank = now.peaks.index(now.peak)
    ranks = pricer.ranks(now.choice, job.schedule)
    assert ranks is not None, "the memory of the layers is known"
    return f"rank {rank} needs {size_text(now.peak)} ({fill_text(ranks.parts(job.workload.layers, rank))})"
