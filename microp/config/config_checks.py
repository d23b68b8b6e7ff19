"""Checks a configuration's keys, one by one and together, before any process starts.

::

    Config ── problems ──► what has to be changed, one sentence each: value, rule, remedy
    Config ── warnings ──► what the user of a valid configuration should know
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from microp.config.config import plain
from microp.config.prediction import profile_notes, profile_problems
from microp.config.schema import Config
from microp.job import Job, torch_problems
from microp.settings import (
    COPYING,
    EstimateSettings,
    OwnSettings,
    SlurmSettings,
    broken_rules,
    no_slurm,
    not_writable,
    quoted,
)
from microp.system import (
    GIB,
    MIB,
    flatten,
    is_joined,
    is_over_hosts,
    memory_bytes,
    no_compiler,
    out_of_reach,
    redact_values,
)

PROCESS = 40 * MIB  # of a rank that holds a small model


def problems(config: Config) -> list[str]:
    """Return what is wrong with the configuration, one sentence per problem: the value, the rule, the remedy."""
    wrong = broken_rules(config)
    for group in (config.model, config.checkpointing, config.engine, config.tracking, config.snapshot):
        wrong += group.problems()
    wrong += config.optimizer.problems(config.warmup_steps + config.steps)
    wrong += config.computing.problems(config.model.name, config.model.dtype)
    wrong += config.device.problems() + config.device.speed_problems(config.ranks)
    wrong += config.comms.problems(config.device)
    wrong += config.launch.problems(config.ranks, config.replicas)
    if isinstance(config.device, EstimateSettings):
        wrong.append(
            "device=estimate is for python -m microp.plan, microp.simulate and microp.order: nothing runs on it, "
            "use device=cpu"
        )
    if not wrong:
        return _problems_together(config) or _machine_problems(config)
    # A value that is wrong by itself need not fit the others.
    told = {problem.partition("=")[0] for problem in wrong}
    return wrong + [problem for problem in _problems_together(config) if problem.partition("=")[0] not in told]


def _machine_problems(config: Config) -> list[str]:
    """Return what this machine lacks for a valid configuration; a job of Slurm runs on another one."""
    if isinstance(config.launch, SlurmSettings):
        return no_slurm()
    lacking = no_compiler() if config.compile and config.device.name != "cuda" else []
    return lacking or _memory_problems(config, ranks_here(config))


def _memory_problems(config: Config, processes: int) -> list[str]:
    """Return why the run does not fit into this machine's memory; it counts the least that a run needs.

    That is the weights, their gradients and the optimizer's state in every replica, the text on the ranks of the first
    and of the last stage, one tensor between two stages, of the largest microbatch, and what a rank has besides.
    """
    model, rows = config.model, -(-config.batch_size // config.replicas // config.chunks)
    total = model.batch_bytes(config.batch_size) * min(config.ranks, 2)
    if config.device.name != "cuda":
        numbers = model.weights + (1 + config.optimizer.states) * model.trained  # a frozen weight has no gradient
        total += numbers * config.replicas * model.weight_bytes + PROCESS * processes
        total += round(rows * model.hop_bytes((model.layers,), config.computing))
    if total <= memory_bytes():
        return []
    return [
        f"this run needs at least {total / GIB:,.1f} GiB of memory, and this machine has {memory_bytes() / GIB:,.1f} "
        "GiB: use a smaller model or batch_size, or fewer ranks or replicas"
    ]


def _problems_together(config: Config) -> list[str]:
    """Return what is wrong with values that do not fit each other, or not this machine."""
    wrong = _folder_problems(config) + _gpu_problems(config) + profile_problems(config) + _slurm_problems(config)
    if not config.model.problems():
        wrong += config.data.problems(config.model.row_bytes, config.model.vocabulary)
    return wrong + [text for holds, text in _misfits(config) if holds]


def _misfits(config: Config) -> list[tuple[bool, str]]:
    """Return pairs of values that do not fit each other: whether the configuration has them, and what to use."""
    model, device, sync, replicas = config.model, config.device, config.sync.name, config.replicas
    chunks, batch, parts = config.chunks, config.batch_size, config.replicas * config.chunks
    engine, not_microp = f"engine={config.engine.name}", config.engine.name != "microp"
    latency, backend = getattr(device, "latency_ms", 0), config.comms.backend(device)
    has_ddp, shares = sync in ("torch_ddp", "compare"), device.is_shared
    buffers = isinstance(model, OwnSettings) and model.facts.changes_buffers
    changes, itself = f"model={model.name} changes buffers in its forward, which", "sends a GPU's tensors itself"
    is_own = isinstance(model, OwnSettings)
    layers = f"the layers of model={model.name}" if is_own else f"model.layers={model.layers}"
    return [
        (not_microp and config.comms.name == "threads", f"{engine} needs ranks that are processes: use comms=auto"),
        (not_microp and replicas > 1, f"replicas={replicas} needs engine=microp: use one of the two alone"),
        (not_microp and shares, f"{engine} {itself}, not with device.share=true: use engine=microp"),
        (not_microp and config.compile, f"{engine} cannot run compiled layers: use engine=microp or compile=false"),
        (not_microp and buffers, f"{engine}: {changes} each engine would change: use engine=microp"),
        (replicas > 1 and buffers, f"replicas={replicas}: {changes} differ between replicas: use replicas=1"),
        (
            config.checkpointing.segments > 0 and buffers,
            f"checkpointing={config.checkpointing.name}: {changes} a recomputation would do again: use "
            "checkpointing=never",
        ),
        (config.compile and buffers, f"{changes} is not tried with compile=true: use compile=false"),
        (
            config.compile and model.draws,
            f"model={model.name} draws random numbers, and compiled code would draw others: use compile=false or no "
            "dropout",
        ),
        (shares and replicas > 1 and has_ddp, f"sync={sync} {itself}, not with device.share=true: use sync=ddp"),
        (
            getattr(device, "reduce_ms", None) is not None and has_ddp,
            f"device.reduce_ms cannot be used if the sums are part of the backward: use sync=ddp, not {sync}",
        ),
        (
            bool(latency) and backend not in COPYING,
            f"device.latency_ms={latency} needs a transport that records sending times: use comms=shm or "
            f"comms=threads, not {backend}",
        ),
        (
            bool(latency) and (is_over_hosts() or getattr(config.launch, "nodes", 1) > 1),
            f"device.latency_ms={latency} needs all ranks on one host, whose clock they share: leave it out",
        ),
        (chunks > batch > 0, f"chunks={chunks} is more than batch_size={batch} has rows: use at most {batch}"),
        (
            parts > batch >= chunks > 0,
            f"replicas={replicas} times chunks={chunks} is more than batch_size={batch} has rows: use a batch_size of "
            f"at least {parts}",
        ),
        (
            config.ranks > model.layers > 0,
            f"ranks={config.ranks} is more than {layers}: every rank needs a layer, use at most {model.layers}",
        ),
    ]


def _folder_problems(config: Config) -> list[str]:
    """Return why the run's files, or else W&B's, cannot be written; nothing is written to find out."""
    output = Path(config.output_dir)
    if reason := not_writable(output):
        return [f"output_dir={quoted(output)} cannot be written ({reason}): choose another folder"]
    problem = None if config.tracking.problems() else config.tracking.folder_problem(output)
    return [problem] if problem else []


def _gpu_problems(config: Config) -> list[str]:
    """Return what is wrong with `device=cuda` on this machine, one sentence per problem."""
    if config.device.name != "cuda" or isinstance(config.launch, SlurmSettings):
        return []
    import torch  # takes half a second, and only this check needs it

    ranks, gpus = ranks_here(config), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0:
        return ["device=cuda, but torch sees no GPU here: use device=cpu or a CUDA/ROCm build of torch"]
    if ranks > gpus and not config.device.is_shared:
        return [
            f"ranks={ranks} is more than the {gpus} {'GPU' if gpus == 1 else 'GPUs'} here: use at most {gpus}, or "
            "device.share=true, by which ranks share one"
        ]
    return []


def _slurm_problems(config: Config) -> list[str]:
    """Return what is wrong with `launch=slurm` for this configuration, one sentence per problem."""
    launch = config.launch
    if not isinstance(launch, SlurmSettings) or launch.problems(config.ranks, config.replicas):
        return []
    wrong, per_node = [], launch.ranks_per_node(config.ranks * config.replicas)
    if config.device.is_shared and not launch.gpus_per_node:
        wrong.append("launch.gpus_per_node=0: device=cuda needs a GPU on each node: use launch.gpus_per_node=1")
    if config.device.name == "cuda" and not config.device.is_shared and launch.gpus_per_node < per_node:
        wrong.append(
            f"launch.gpus_per_node={launch.gpus_per_node} is less than the {per_node} ranks of a node, and with "
            f"device=cuda each needs its own: use launch.gpus_per_node={per_node}, more launch.nodes, or "
            "device.share=true"
        )
    if config.comms.name == "threads":
        wrong.append("launch=slurm makes each rank a task of its job, not a thread: use comms=auto")
    values = flatten(plain(config))
    secret = [key for key, value in redact_values(values).items() if value != values[key]]
    return wrong + [f"{key} is a secret, and a job reads its point from a file: use launch=elastic" for key in secret]


def only_in_a_sweep(config: Config) -> list[str]:
    """Return what is wrong with a run alone that only a sweep can have."""
    if not isinstance(config.launch, SlurmSettings):
        return []
    return ["launch=slurm is for the points of a sweep: type -m, also for one point"]


def beside_problems(config: Config) -> list[str]:
    """Return what is wrong with a point that runs beside others of its sweep."""
    if isinstance(config.launch, SlurmSettings):
        return ["launch=slurm submits all points itself: leave hydra/launcher out"]
    if config.parallel or config.device.is_emulated:  # nominal times; an action that outlasts its own is counted
        return []
    return [
        f"this launcher runs points at the same time, and the times of device={config.device.name} would be those of "
        "shared cores: leave hydra/launcher out, or use parallel=true if you need no times"
    ]


def ranks_here(config: Config) -> int:
    """Return the number of ranks on this host: all of them, or those that torchrun started here."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if is_joined() else config.ranks * config.replicas


def warnings(config: Config, job: Job) -> list[str]:
    """Return what the user of a valid configuration should know, one sentence each."""
    texts = []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here = ranks_here(config)
    who = f"ranks={here}" if config.replicas == 1 else f"{here} ranks of {config.replicas} replicas"
    on_this = not isinstance(config.launch, SlurmSettings)
    if on_this and config.device.name == "cpu" and here * config.device.threads > cores:
        texts.append(
            f"{who} compute on {cores} cores: they take turns, so the timings measure "
            f"the cores and not the schedule (gradients, losses and memory are still exact)"
        )
    if config.device.is_shared:
        texts.append(
            f"{who} share GPUs (device.share=true): they take turns and send through the host's memory, so the timings "
            "are not those of the schedule (gradients, losses and memory per rank are)"
        )
    if config.tracking.mode == "online" and (away := out_of_reach()):
        runs = shlex.quote(str(config.tracking.folder(Path(config.output_dir)) / "wandb"))
        texts.append(f"{away}: the runs are mirrored offline; send them later with `wandb sync {runs}/offline-run-*`")
    if config.engine.name == "compare" and "torch" not in job.engines:
        reasons = torch_problems(job.torch_schedule, job.checkpointing, job.rows)
        texts.append(f"engine=compare goes without torch: {reasons[0]}")
    if isinstance(job.model, OwnSettings) and job.schedule.split and (as_one := job.model.facts.as_one):
        which = ", ".join(map(str, as_one))
        texts.append(
            f"{'layer' if len(as_one) == 1 else 'layers'} {which}: B and W of the parts are not the full backward, so "
            "the whole layer is divided as one, and W computes again what B has computed"
        )
    parts = job.schedule.chunks * job.replicas
    if isinstance(job.model, OwnSettings) and parts > 1 and (mixing := job.model.facts.mixing):
        which = ", ".join(map(str, mixing))
        texts.append(
            f"{'layer' if len(mixing) == 1 else 'layers'} {which}: a row depends on the rows beside it, so the result "
            "depends on chunks and replicas, as in any pipeline"
        )
    texts += job.notes
    texts += profile_notes(config, [job.mean_rows])
    return texts
