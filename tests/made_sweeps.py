"""Made-up runs of what each experiment varies, a small product of it unless the caller gives the values."""

import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from analysis import engine_speed
from microp.records import LAUNCH
from microp.schedule import Schedule, builders
from microp.simulator import Costs, closed_forms
from microp.trace import KINDS
from tests.made_up import run

LOOPED = ("breadth_first", "interleaved", "zb_interleaved")  # their builders take the stages per rank
FEW, TWO = ("gpipe", "1f1b"), ("never", "always")
_bubble = cache(closed_forms.bubble)
NOMINAL = {"config.device.forward_ms": 5.0, "config.device.backward_ms": 10.0}
SEGMENTS = {"never": 0, "always": 1, "segments": 2, "except_last": 1}
Rows = Iterator[dict[str, Any]]
ENGINES = [(device, 2, dim, "shm") for dim in (64, 128) for device in ("emulated", "cpu")]
ENGINES[-1] = ("cpu", 2, 128, "gloo")


@cache
def order(name: str, ranks: int, chunks: int) -> Schedule:
    """Return a schedule by its name; an unknown name is GPipe's order under that name."""
    if name in LOOPED:
        return getattr(builders, name)(ranks, chunks, 2)
    own = getattr(builders, "one_f_one_b" if name == "1f1b" else name, builders.gpipe)(ranks, chunks)
    return Schedule(name, chunks, own.ranks)


def made(folder: Path, name: str, chunks: int, ranks=2, latency: float = 0, scale: float = 1, shared=True, **changes):
    """Return a run with every column that the figures read; on a real device without those of the emulated one.

    `scale` is the time of a microbatch on a rank, relative to F = 5 and B = 10 ms; a `shared` run has its folder in
    common with runs of the same trace.
    """
    schedule = order(name, ranks, chunks)
    stages = schedule.stages
    unit = 5 * scale * ranks / stages
    costs = Costs((unit,) * stages, (2 * unit,) * stages, latency=latency)
    if schedule.input_gradients:
        costs = Costs((unit,) * stages, (unit,) * stages, (unit,) * stages, latency)
    bubble = _bubble(schedule, costs)
    more = {"bubble.closed_form": None if bubble is None else float(bubble), "partition": [1] * stages}
    more |= {"batch_size": chunks, "config.chunks": chunks, "config.ranks": ranks, "config.partition.name": "uniform"}
    more |= {"config.device.name": changes.get("device", "emulated"), "config.device.latency_ms": float(latency)}
    more |= {"config.model.name": "mlp", "config.model.layers": ranks, "config.schedule.name": name}
    more |= {"config.checkpointing.name": changes.get("checkpointing", "never")}
    more |= {f"time_ms.{kind}": [1.0] * ranks for kind in KINDS}
    more |= {key: value * ranks / stages for key, value in NOMINAL.items()} | changes
    row = run(folder, schedule, more.pop("costs", costs), shared=shared, **more)
    row["peak_activation_mib"] = changes.get("peak_activation_mib", [scale * each for each in row["in_flight_peak"]])
    if row["device"] == "emulated":
        return row
    return {key: value for key, value in row.items() if key == "config.device.name" or "config.device" not in key}


def m_runs(
    folder, where=(("emulated", 2), ("cpu", 2)), chunks=(1, 4, 16), names=("gpipe", "zb_h1", "naive"), launches=(0, 1)
) -> Rows:
    for (device, ranks), launch in product(where, launches):
        same = {LAUNCH: launch, "device": device, "config.device.per": ["row"], "config.model.layers": ranks}
        for fixed, number, name in product(("batch", "microbatch"), chunks, names):
            batch = 4 * max(chunks) if fixed == "batch" else 4 * number
            yield made(folder, name, number, ranks, scale=batch / number, batch_size=batch, fixed=fixed, **same)
        batch = 4 * max(chunks)
        alone = same | {"partition": [ranks], "batch_size": batch, "fixed": "batch"}
        alone |= {key: value * ranks for key, value in NOMINAL.items()}
        yield made(folder, "naive", 1, 1, scale=ranks * batch, **alone)


def checkpoint_runs(
    folder, policies=("never", "always", "segments"), chunks=(2, 4), names=FEW, models=("mlp", "gpt"), launches=(0, 1)
) -> Rows:
    for policy, number, name, launch, model in product(policies, chunks, names, launches, models):
        if name == "gpipe_lifo" and policy not in ("never", "except_last"):
            continue
        segments = SEGMENTS[policy]
        changes = {"checkpointing": policy, "config.checkpointing.segments": segments, LAUNCH: launch, "model": model}
        changes["config.checkpointing.spare_last"] = policy == "except_last"
        held = (number if name != "1f1b" else 2) / number * (1 if not segments else 0.2 + 0.1 * segments)
        changes["peak_activation_mib"] = [8.0 * held, 7.5 * held]
        slower = 1.0 if not segments else 1.3 - 0.05 * segments
        yield made(folder, name, number, batch_size=8, device="cpu", slower=slower, **changes)


def skew_runs(
    folder, where=(("emulated", 2), ("cpu", 2)), shares=(0.5, 0.75), heavy=(0, 1), names=FEW, launches=(0, 1)
) -> Rows:
    for (device, ranks), name, rank, share, launch in product(where, names, heavy, shares, launches):
        if rank >= ranks or share < 1 / ranks:
            continue
        light = max(1, round(60 * (1 - share) / (ranks - 1)))
        layers = [60 - light * (ranks - 1) if each == rank else light for each in range(ranks)]
        changes = {"config.partition.rank": float(rank), "config.partition.share": share, LAUNCH: launch}
        changes |= {"config.device.per": ["layer"], "partition": layers, "device": device, "batch_size": 16}
        costs = Costs(tuple(5 * each for each in layers), tuple(10 * each for each in layers))
        yield made(folder, name, 8, ranks, costs=costs, **changes)


def schedule_runs(
    folder, names=FEW, chunks=(2, 4), policies=TWO, devices=("emulated", "cpu"), ranks=2, launches=(0, 1)
) -> Rows:
    for name, number, policy, launch, device in product(names, chunks, policies, launches, devices):
        changes = {"checkpointing": policy, LAUNCH: launch, "device": device}
        slower = 1.0 if policy == "never" else 1.3
        yield made(folder, name, number, ranks, slower=slower, **changes)


def latency_runs(folder, names=FEW, chunks=(4, 8), latencies=(0, 2), ranks=2, launches=(0, 1)) -> Rows:
    for name, number, latency, launch in product(names, chunks, latencies, launches):
        yield made(folder, name, number, ranks, latency=latency, **{LAUNCH: launch})
        yield made(folder, name, number, ranks, **{LAUNCH: launch, "device": "cpu"})


def engine_runs(folder, where=ENGINES, names=FEW, chunks=(4, 8), launches=(0, 1)) -> Rows:
    for (device, ranks, dim, comms), name, number, launch in product(where, names, chunks, launches):
        for engine in ("compare", "microp"):
            over = 1 + 0.1 * len(name) / number
            ratios = dict(zip(engine_speed.RATIOS, (over, 2 * over, 2), strict=True)) if engine == "compare" else {}
            changes = {LAUNCH: launch, "config.model.dim": dim, "device": device, "engine": engine, "comms": comms}
            yield made(folder, name, number, ranks, **changes, **ratios)


def sync_runs(folder, dims=(64, 128), buckets=(1.0, 25.0), replicas=(1, 2), launches=(0, 1)) -> Rows:
    ways = ("naive", "flat", "ddp", "torch_ddp", "compare")
    for sync, number, dim, reduce, launch, device in product(
        ways, replicas, dims, ("auto", "ring"), launches, ("cpu", "emulated")
    ):
        for bucket in buckets if sync in ("ddp", "torch_ddp", "compare") else (None,):
            changes = {"sync": sync, "replicas": number, "config.model.dim": dim, LAUNCH: launch, "device": device}
            changes |= {"config.sync.all_reduce": reduce}
            if bucket is not None:
                changes["config.sync.bucket_mb"] = bucket
            if number > 1:
                changes |= {"reduction.exposed_ms": 1.0, "reduction.all_reduce_ms": 2.0 + number * dim / 64}
                changes |= {"reduction.reduced_bytes": float(64 * dim * dim)}
            if sync == "compare":
                changes["syncs.ratio.ddp/torch_ddp"] = 0.9
                changes |= {f"syncs.reduced_bytes.{each}": 1.0 for each in ("ddp", "torch_ddp")}
            slower = dim / 64 * (1.2 if sync == "naive" else 1.0) * (1 + 0.1 / (bucket or 25))
            yield made(folder, "gpipe", 1, 1, slower=slower, **changes)


def hybrid_runs(
    folder, names=FEW, chunks=(2, 4), reduce_ms=(5.0, 20.0), ranks=2, replicas=(1, 2), launches=(0, 1)
) -> Rows:
    for name, number, each, launch, copies in product(names, chunks, reduce_ms, launches, replicas):
        changes = {LAUNCH: launch, "replicas": copies, "config.device.reduce_ms": each}
        if copies > 1:
            times = dict.fromkeys(("measured", "simulated", "exposed", "simulated_exposed"), 15.0 * number + each)
            changes |= {f"reduction.{key}_ms": value for key, value in times.items()}
        row = made(folder, name, number, ranks, shared=copies == 1, **changes)
        if copies > 1:
            line = {"rank": 0, "stage": 0, "start_ns": 1e6, "end_ns": 2e6}
            Path(row["folder"], "reductions.rank0.jsonl").write_text(json.dumps(line) + "\n")
        yield row
        yield made(folder, name, number, ranks, **{LAUNCH: launch, "replicas": copies, "device": "cpu"})
