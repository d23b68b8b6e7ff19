"""Checks a configuration's keys, one by one and together, before any process starts.

::

    Config ── problems ──► what has to be changed, one sentence each: value, rule, remedy
    Config ── warnings ──► what the user of a valid configuration should know
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path

from microp import settings, system
from microp.config.config import plain
from microp.config.prediction import profile_notes, profile_problems, uneven_rows
from microp.config.schema import Config
from microp.job import Job, torch_problems
from microp.schedule import Op, Schedule, spread

PROCESS = 40 * system.MIB  # of a rank that holds a small model


def problems(config: Config) -> list[str]:
    """Return what is wrong with the configuration, one sentence per problem: the value, the rule, the remedy."""
    wrong = settings.broken_rules(config)
    for group in (config.model, config.checkpointing, config.engine, config.tracking, config.snapshot):
        wrong += group.problems()
    wrong += config.optimizer.problems(config.warmup_steps + config.steps)
    wrong += config.computing.problems(config.model.name, config.model.dtype)
    wrong += config.device.problems() + config.device.speed_problems(config.ranks)
    wrong += config.comms.problems(config.device)
    wrong += config.launch.problems(config.ranks, config.replicas)
    if isinstance(config.device, settings.EstimateSettings):
        wrong.append(
            "device=estimate is for python -m microp.plan, microp.simulate and microp.order: nothing runs on it, "
            "use device=cpu"
        )
    if not wrong:
        return _problems_together(config) or _lacking(config)
    # A value that is wrong by itself need not fit the others.
    told = {problem.partition("=")[0] for problem in wrong}
    return wrong + [problem for problem in _problems_together(config) if problem.partition("=")[0] not in told]


def _lacking(config: Config) -> list[str]:
    """Return what this machine lacks for a valid configuration; a job of Slurm runs on another one.

    The memory that a run needs at least is the weights, their gradients and the optimizer's state in every replica, the
    batch on the ranks of the first and of the last stage, one tensor between two stages, and what a rank has besides.
    """
    if isinstance(config.launch, settings.SlurmSettings):
        return settings.no_slurm()
    model, rows = config.model, -(-config.batch_size // config.replicas // config.chunks)
    total = sum(model.batch_bytes(config.batch_size))
    if config.device.name != "cuda":
        numbers = model.weights + (1 + config.optimizer.states) * model.trained  # a frozen weight has no gradient
        total += numbers * config.replicas * model.weight_bytes + PROCESS * ranks_here(config)
        total += round(rows * model.hop_bytes((model.layers,), config.computing))
    if total <= (most := system.memory_bytes()):
        return []
    return [
        f"this run needs at least {system.size_text(total)} of memory, and this machine has {system.size_text(most)}: "
        "use a smaller model or batch_size, or fewer ranks or replicas"
    ]


def _problems_together(config: Config) -> list[str]:
    """Return what is wrong with values that do not fit each other, or not this machine."""
    wrong, output = [], Path(config.output_dir)
    if reason := settings.not_writable(output):  # nothing is written to find out
        wrong.append(f"output_dir={settings.quoted(output)} cannot be written ({reason}): choose another folder")
    elif not config.tracking.problems() and (problem := config.tracking.folder_problem(output)):
        wrong.append(problem)
    wrong += _gpu_problems(config) + profile_problems(config) + _slurm_problems(config)
    if config.model.facts.rows:
        if config.data != settings.TextSettings("text", None):
            wrong.append(
                f"model={config.model.name} has data of its own: leave out data={config.data.name} and its keys"
            )
    elif not config.model.problems():
        wrong += config.data.problems(config.model.row_bytes, config.model.vocabulary)
    wrong += config.model.segment_problems(config.checkpointing.segments)
    return wrong + [text for holds, text in _misfits(config) if holds]


def _misfits(config: Config) -> list[tuple[bool, str]]:
    """Return pairs of values that do not fit each other: whether the configuration has them, and what to use."""
    model, device, sync, replicas = config.model, config.device, config.sync.name, config.replicas
    ranks, chunks, batch = config.ranks, config.chunks, config.batch_size
    engine, by_torch = f"engine={config.engine.name}", config.engine.name != "microp"
    backend, latency = config.comms.backend(device), getattr(device, "latency_ms", 0)
    hop, has_nodes = f"device.latency_ms={latency}", system.is_over_hosts() or getattr(config.launch, "nodes", 1) > 1
    has_ddp, shares, itself = sync in ("torch_ddp", "compare"), device.is_shared, "sends a GPU's tensors itself"
    buffers, lost = model.facts.changes_buffers, model.facts.unsaved
    changes = f"model={model.name} changes buffers in its forward"
    goes_on = [f"snapshot.{key}" for key in ("every", "resume", "path") if getattr(config.snapshot, key)]
    policy = f"checkpointing={config.checkpointing.name}"
    rows = f"batch_size={batch} has rows"
    return [
        (by_torch and config.comms.name == "threads", f"{engine} needs ranks that are processes: use comms=auto"),
        (by_torch and replicas > 1, f"replicas={replicas} needs engine=microp: use one of the two alone"),
        (by_torch and shares, f"{engine} {itself}, not with device.share=true: use engine=microp"),
        (
            config.compile and config.comms.name == "threads" and version("torch").startswith(("2.11.", "2.12.")),
            "compile=true comms=threads needs torch 2.13, older ones cannot compile in two threads: use comms=auto",
        ),
        (by_torch and config.compile, f"{engine} cannot run compiled layers: use engine=microp or compile=false"),
        (by_torch and buffers, f"{engine}: {changes}, which each engine would change: use engine=microp"),
        (replicas > 1 and buffers, f"replicas={replicas}: {changes}, which differ between replicas: use replicas=1"),
        (
            config.checkpointing.segments > 0 and buffers,
            f"{policy}: {changes}, which a recomputation would change again: use checkpointing=never",
        ),
        (
            bool(lost and goes_on),
            f"{' and '.join(goes_on)}: {''.join(lost[:1])} of model={model.name} in its forward, which is not in its "
            "state_dict and would be lost: keep it in a buffer (register_buffer, persistent=True), or leave this out",
        ),
        (config.compile and buffers, f"{changes}, which is not tried with compile=true: use compile=false"),
        (
            config.compile and model.draws,
            f"model={model.name} draws random numbers, compiled code draws others: use compile=false or no dropout",
        ),
        (shares and replicas > 1 and has_ddp, f"sync={sync} {itself}, not with device.share=true: use sync=ddp"),
        (
            getattr(device, "reduce_ms", None) is not None and has_ddp,
            f"device.reduce_ms cannot be used if the sums are part of the backward: use sync=ddp, not {sync}",
        ),
        (
            bool(latency) and backend not in settings.COPYING,
            f"{hop} needs a transport that records sending times: use comms=shm or comms=threads, not {backend}",
        ),
        (bool(latency) and has_nodes, f"{hop} needs all ranks on one host, whose clock they share: leave it out"),
        (chunks > batch > 0, f"chunks={chunks} is more than {rows}: use at most {batch}"),
        (
            replicas * chunks > batch >= chunks > 0,
            f"replicas={replicas} times chunks={chunks} is more than {rows}: use a batch_size of {replicas * chunks}",
        ),
        (
            ranks > model.layers > 0,
            f"ranks={ranks} is more than {model.layers_text}: every rank needs a layer, use at most {model.layers}",
        ),
    ]


def _gpu_problems(config: Config) -> list[str]:
    """Return what is wrong with `device=cuda` on this machine, one sentence per problem."""
    if config.device.name != "cuda" or isinstance(config.launch, settings.SlurmSettings):
        return []
    import torch  # takes half a second, and only this check needs it

    ranks, gpus = ranks_here(config), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0:
        return ["device=cuda, but torch sees no GPU here: use device=cpu or a CUDA/ROCm build of torch"]
    if ranks <= gpus or config.device.is_shared:
        return []
    here, remedy = f"the {gpus} {'GPU' if gpus == 1 else 'GPUs'} here", "device.share=true, by which ranks share one"
    return [f"ranks={ranks} is more than {here}: use at most {gpus}, or {remedy}"]


def _slurm_problems(config: Config) -> list[str]:
    """Return what is wrong with `launch=slurm` for this configuration, one sentence per problem."""
    launch, device = config.launch, config.device
    if not isinstance(launch, settings.SlurmSettings) or launch.problems(config.ranks, config.replicas):
        return []
    wrong, per_node, gpus = [], launch.ranks_per_node(config.ranks * config.replicas), launch.gpus_per_node
    if device.is_shared and not gpus:
        wrong.append("launch.gpus_per_node=0: device=cuda needs a GPU on each node: use launch.gpus_per_node=1")
    elif device.name == "cuda" and not device.is_shared and gpus < per_node:
        wrong.append(
            f"launch.gpus_per_node={gpus} is less than the {per_node} ranks of a node, and with device=cuda each needs "
            f"its own: use launch.gpus_per_node={per_node}, more launch.nodes, or device.share=true"
        )
    if config.comms.name == "threads":
        wrong.append("launch=slurm makes each rank a task of its job, not a thread: use comms=auto")
    values = system.flatten(plain(config))
    secret = [key for key, value in system.redact_values(values).items() if value != values[key]]
    return wrong + [f"{key} is a secret, and a job reads its point from a file: use launch=elastic" for key in secret]


def as_run(config: Config, schedule: Schedule) -> Schedule:
    """Return the order that runs: without a time of their own the F and the B of a pair run one after the other."""
    return schedule if getattr(config.device, "pair_ms", None) is not None else schedule.apart


def order_problems(config: Config, schedule: Schedule) -> list[str]:
    """Return why this order cannot be run as it is asked for."""
    problems: list[str] = []
    if config.compile and schedule.input_gradients:
        problems.append(
            f"schedule={config.schedule['name']} divides the backward into I and W, and compile=true makes one "
            "function of both: use a schedule without W, for example 1f1b, or compile=false"
        )
    problems += config.model.slice_problems(schedule.slices)
    if config.replicas > 1:
        backend, is_split = config.comms.backend(config.device), bool(schedule.input_gradients)
        problems += config.sync.problems(schedule.name, is_split, backend)
    if schedule.copies > 1 and config.model.tied_weights:
        problems.append(
            f"schedule={config.schedule['name']} has copies of the model, and model={config.model.name} ties weights, "
            "whose gradients are summed otherwise: use weights that are not tied, or a schedule without copies"
        )
    if schedule.copies > 1 and config.model.facts.changes_buffers:
        problems.append(
            f"schedule={config.schedule['name']} has copies of the model, and model={config.model.name} changes "
            "buffers in its forward, which differ between copies: use a schedule without copies, for example 1f1b"
        )
    forwards = [(action.stage, action.microbatch) for row in schedule.ranks for action in row if action.op is Op.F]
    if config.model.facts.changes_buffers and sorted(forwards, key=itemgetter(0)) != sorted(forwards):
        problems.append(
            f"schedule={config.schedule['name']} runs forwards of a stage in another order than that of the "
            f"microbatches, and model={config.model.name} changes buffers in its forward, one after the other: use a "
            "schedule with forwards in order, for example 1f1b"
        )
    if schedule.copies > 1 and config.engine.name == "compare":
        problems.append(
            f"engine=compare has neither torch nor a limit beside schedule={config.schedule['name']}, which has copies "
            "of the model: use engine=microp"
        )
    if config.compile and max(schedule.copies, schedule.slices) > 1:
        what = "copies" if schedule.copies > 1 else "slices"
        problems.append(f"schedule={config.schedule['name']} has {what}, which compile=true cannot: use compile=false")
    if schedule.input_gradients:
        problems += config.model.facts.undivided
    if config.engine.name == "torch":
        problems += torch_problems(schedule, config.checkpointing, spread(config.batch_size, config.chunks))
    return problems


def only_in_a_sweep(config: Config) -> list[str]:
    """Return what is wrong with a run alone that only a sweep can have."""
    if not isinstance(config.launch, settings.SlurmSettings):
        return []
    return ["launch=slurm is for the points of a sweep: type -m, also for one point"]


def beside_problems(config: Config) -> list[str]:
    """Return what is wrong with a point that runs beside others of its sweep."""
    if isinstance(config.launch, settings.SlurmSettings):
        return ["launch=slurm submits all points itself: leave hydra/launcher out"]
    if config.parallel or config.device.is_emulated:  # nominal times; an action that outlasts its own is counted
        return []
    return [
        f"this launcher runs points at the same time, and the times of device={config.device.name} would be those of "
        "shared cores: leave hydra/launcher out, or use parallel=true if you need no times"
    ]


def ranks_here(config: Config) -> int:
    """Return the number of ranks on this host: all of them, or those that torchrun started here."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if system.is_joined() else config.ranks * config.replicas


def shared_cores(config: Config) -> int | None:
    """Return the number of cores here if the ranks compute on fewer than they need; else None."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    is_here = not isinstance(config.launch, settings.SlurmSettings) and config.device.name == "cpu"
    return cores if is_here and ranks_here(config) * config.device.threads > cores else None


def warnings(config: Config, job: Job) -> list[str]:
    """Return what the user of a valid configuration should know, one sentence each."""
    texts = []
    here = ranks_here(config)
    who = f"ranks={here}" if config.replicas == 1 else f"{here} ranks of {config.replicas} replicas"
    if cores := shared_cores(config):
        texts.append(
            f"{who} compute on {cores} cores: they take turns, so the timings measure "
            f"the cores and not the schedule (gradients, losses and memory are still exact)"
        )
    if config.device.is_shared:
        texts.append(
            f"{who} share GPUs (device.share=true): they take turns and send through the host's memory, so the timings "
            "are not those of the schedule (gradients, losses and memory per rank are)"
        )
    if config.tracking.mode == "online" and (away := system.out_of_reach()):
        runs = shlex.quote(str(config.tracking.folder(Path(config.output_dir)) / "wandb"))
        texts.append(f"{away}: the runs are mirrored offline; send them later with `wandb sync {runs}/offline-run-*`")
    if config.engine.name == "compare" and "torch" not in job.engines:
        reasons = torch_problems(job.torch_schedule, job.checkpointing, job.rows)
        texts.append(f"engine=compare goes without torch: {reasons[0]}")
    facts = job.model.facts
    if job.schedule.input_gradients and facts.as_one:
        texts.append(
            f"{_layers(facts.as_one)}: I and W of the parts are not the full backward, so the whole layer is divided "
            "as one, and W computes again what B has computed"
        )
    if job.schedule.chunks * job.replicas > 1 and facts.mixing:
        texts.append(
            f"{_layers(facts.mixing)}: a row depends on the rows beside it, so the result depends on chunks and "
            "replicas, as in any pipeline"
        )
    share, rank, partition = config.partition.get("share"), config.partition.get("rank"), job.partition
    if share is not None and rank is not None and config.ranks > 1:
        wanted = max(1, round(share * partition.layers))
        if wanted != partition.sizes[rank]:
            texts.append(
                f"partition.share={share} of {partition.layers} layers is {wanted}, but the other ranks "
                f"need one each: rank {rank} gets {partition.sizes[rank]}"
            )
    texts += memory_doubts(config)
    return [*texts, *uneven_rows(config, job.workload), *job.notes, *_doubts(config, job, asked=True)]


def memory_doubts(config: Config) -> list[str]:
    """Return why the memory that is predicted of a model of the user's own may be off."""
    if not (scattered := config.model.facts.scattered):
        return []
    return [
        f"{_layers(scattered)}: the output does not lie in one piece, and is copied where it is sent or used: "
        "predicted memory knows of no such copy, and can be too low or too high, so let the layer end in .contiguous()"
    ]


def prediction_doubts(config: Config, job: Job) -> list[str]:
    """Return why what a profile that nobody asked for predicts of a run may be far off: said beside its results."""
    return _doubts(config, job, asked=False)


def _doubts(config: Config, job: Job, asked: bool) -> list[str]:
    is_asked = config.profile is not None or config.device.is_emulated
    return profile_notes(config, [job.workload.mean_rows]) if is_asked is asked else []


def _layers(numbers: Sequence[int]) -> str:
    return f"{'layer' if len(numbers) == 1 else 'layers'} {', '.join(map(str, numbers))}"
