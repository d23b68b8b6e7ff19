"""A sweep of which only a part was run is drawn as far as it can be; other figures are left out."""

from __future__ import annotations

import json
from itertools import product

import pandas as pd
import pytest
from costs_helper import equal

from analysis import (
    checkpoint_overhead,
    engine_speed,
    gradient_sync,
    hop_latency,
    hybrid,
    m_sensitivity,
    partition_skew,
    prediction,
    rank_time,
    schedules,
    sweep,
)
from microp.schedule.builders import gpipe, naive, one_f_one_b, zb_h1
from microp.simulator import Costs
from microp.store import LAUNCH
from microp.trace import KINDS
from tests.made_up import Made, run, saves

BUILDERS = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb_h1": zb_h1, "naive": naive}
NOMINAL = {"config.device.forward_ms": 5.0, "config.device.backward_ms": 10.0}


def made(folder, name: str, chunks: int, ranks: int = 2, latency: float = 0, **changes):
    """A run with every column that the figures read; on a real device without those of the emulated one."""
    schedule = BUILDERS[name](ranks, chunks)
    costs = Costs((5,) * ranks, (5,) * ranks, (5,) * ranks, latency) if schedule.split else None
    more = {
        "bubble.closed_form": None if name == "zb_h1" else (ranks - 1) / (chunks + ranks - 1),
        "partition": [1] * ranks,
        "batch_size": chunks,
        "config.device.name": changes.get("device", "emulated"),
        "config.device.latency_ms": float(latency),
        "config.model.name": "mlp",
        "config.model.layers": ranks,
        "config.schedule.name": name,
        "config.chunks": chunks,
        "config.ranks": ranks,
        "config.partition.name": "uniform",
        **{f"time_ms.{kind}": [1.0] * ranks for kind in KINDS},
        **NOMINAL,
        **changes,
    }
    row = run(folder, schedule, costs or equal(ranks, 5, 10, latency=latency), **more)
    if row["device"] == "emulated":
        return row
    return {key: value for key, value in row.items() if key == "config.device.name" or "config.device" not in key}


def m_runs(folder):
    for fixed, ranks, chunks, name, launch in product(
        ("batch", "microbatch"), (1, 2), (1, 4, 16), ("gpipe", "zb_h1", "naive"), (0, 1)
    ):
        for device in ("emulated", "cpu"):
            batch = 16 if fixed == "batch" else chunks
            changes = {"batch_size": batch, LAUNCH: launch, "device": device, "fixed": fixed}
            if name == "zb_h1" and device == "emulated":
                changes["config.device.weight_ms"] = 5.0
                changes["config.device.backward_ms"] = 5.0
            yield made(folder, name, chunks, ranks, **changes, **{"config.device.per": ["row"]})


def checkpoint_runs(folder):
    segments = {"never": 0, "always": 1, "segments": 2}
    for (policy, number), chunks, name, launch, model in product(
        segments.items(), (2, 4), ("gpipe", "1f1b"), (0, 1), ("mlp", "gpt")
    ):
        changes = {"checkpointing": policy, "config.checkpointing.segments": number, LAUNCH: launch, "model": model}
        yield made(folder, name, chunks, batch_size=8, device="cpu", **changes)


def skew_runs(folder):
    for name, heavy, (share, layers), launch, device in product(
        ("gpipe", "1f1b"), (0, 1), ((0.5, [2, 2]), (0.75, [3, 1])), (0, 1), ("emulated", "cpu")
    ):
        changes = {"config.partition.rank": float(heavy), "config.partition.share": share, LAUNCH: launch}
        own = layers if heavy == 0 else layers[::-1]
        yield made(folder, name, 4, partition=own, device=device, **changes, **{"config.device.per": ["layer"]})


def schedule_runs(folder):
    for name, chunks, policy, launch in product(("gpipe", "1f1b"), (2, 4), ("never", "always"), (0, 1)):
        changes = {"checkpointing": policy, LAUNCH: launch, "device": "emulated"}
        yield made(folder, name, chunks, **changes)
        yield made(folder, name, chunks, **changes | {"device": "cpu"})


def latency_runs(folder):
    for name, chunks, latency, launch in product(("gpipe", "1f1b"), (4, 8), (0, 2), (0, 1)):
        yield made(folder, name, chunks, latency=latency, **{LAUNCH: launch})
        yield made(folder, name, chunks, **{LAUNCH: launch, "device": "cpu"})


def engine_runs(folder):
    for name, chunks, dim, launch, device in product(("gpipe", "1f1b"), (4, 8), (64, 128), (0, 1), ("emulated", "cpu")):
        for engine in ("compare", "microp"):
            ratios = dict.fromkeys(engine_speed.RATIOS, 1.1) if engine == "compare" else {}
            changes = {LAUNCH: launch, "config.model.dim": dim, "device": device, "engine": engine}
            yield made(folder, name, chunks, **changes, **ratios)


def sync_runs(folder):
    for sync, replicas, dim, reduce, launch, device in product(
        ("naive", "flat", "ddp", "torch_ddp", "compare"),
        (1, 2),
        (64, 128),
        ("auto", "ring"),
        (0, 1),
        ("cpu", "emulated"),
    ):
        for bucket in (1.0, 25.0) if sync in ("ddp", "torch_ddp", "compare") else (None,):
            changes = {"sync": sync, "replicas": replicas, "config.model.dim": dim, LAUNCH: launch, "device": device}
            changes |= {"config.sync.all_reduce": reduce}
            if bucket is not None:
                changes["config.sync.bucket_mb"] = bucket
            if replicas > 1:
                changes |= {"reduction.exposed_ms": 1.0, "reduction.all_reduce_ms": 2.0 + dim / 64}
                changes |= {"reduction.reduced_bytes": float(dim * dim)}
            if sync == "compare":
                changes["syncs.ratio.ddp/torch_ddp"] = 0.9
                changes |= {f"syncs.reduced_bytes.{each}": 1.0 for each in ("ddp", "torch_ddp")}
            yield made(folder, "gpipe", 1, 1, **changes)


def hybrid_runs(folder):
    for name, chunks, reduce_ms, launch, replicas in product(("gpipe", "1f1b"), (2, 4), (5.0, 20.0), (0, 1), (1, 2)):
        changes = {LAUNCH: launch, "replicas": replicas, "config.device.reduce_ms": reduce_ms}
        if replicas > 1:
            changes |= {
                f"reduction.{key}_ms": 50.0 for key in ("measured", "simulated", "exposed", "simulated_exposed")
            }
        row = made(folder, name, chunks, **changes)
        if replicas > 1:
            line = {"rank": 0, "stage": 0, "start_ns": 1e6, "end_ns": 2e6}
            (folder / row["run_id"] / "reductions.rank0.jsonl").write_text(json.dumps(line) + "\n")
        yield row
        yield made(folder, name, chunks, **{LAUNCH: launch, "replicas": replicas, "device": "cpu"})


def any_sweep(store) -> list:
    return [sweep.exhibit(store.runs(), "sweep", "Sweep")]


CASES = {  # the function that draws, the runs of a whole sweep, and the columns by which a part is chosen
    "m_sensitivity": (m_sensitivity.exhibits, m_runs, ["fixed", "ranks", "chunks", "schedule", "device"]),
    "checkpoint_overhead": (
        checkpoint_overhead.exhibits,
        checkpoint_runs,
        ["checkpointing", "chunks", "schedule", "model", LAUNCH],
    ),
    "partition_skew": (
        partition_skew.exhibits,
        skew_runs,
        ["schedule", "config.partition.rank", "config.partition.share", "device", LAUNCH],
    ),
    "schedules": (schedules.exhibits, schedule_runs, ["schedule", "chunks", "checkpointing", "device", LAUNCH]),
    "hop_latency": (
        hop_latency.exhibits,
        latency_runs,
        ["schedule", "chunks", "config.device.latency_ms", "device", LAUNCH],
    ),
    "engine_speed": (
        engine_speed.exhibits,
        engine_runs,
        ["schedule", "chunks", "config.model.dim", "device", "engine", LAUNCH],
    ),
    "gradient_sync": (
        gradient_sync.exhibits,
        sync_runs,
        ["sync", "replicas", "config.model.dim", "config.sync.all_reduce", "device"],
    ),
    "hybrid": (hybrid.exhibits, hybrid_runs, ["schedule", "chunks", "config.device.reduce_ms", "device", "replicas"]),
    "rank_time": (rank_time.exhibits, schedule_runs, ["chunks", "schedule", "device"]),
    "prediction": (prediction.exhibits, schedule_runs, ["chunks", "schedule", "device"]),
    "sweep": (any_sweep, schedule_runs, ["chunks", "schedule", "device", LAUNCH]),
}


def parts_of(rows: list[dict], keys: list[str]):
    """Yield the parts with one value of one key or of two, as rows of a store in which absent columns are absent."""
    seen = set()
    for index, first in enumerate(keys):
        for second in keys[index:]:
            for values in dict.fromkeys((row.get(first), row.get(second)) for row in rows):
                part = [row for row in rows if (row.get(first), row.get(second)) == values]
                name = ", ".join(f"{key}={value}" for key, value in zip((first, second), values, strict=True))
                ids = frozenset(row["run_id"] for row in part)
                if ids not in seen:
                    yield name, part
                seen.add(ids)


@pytest.mark.parametrize("experiment", CASES)
def test_every_part_of_a_sweep_is_drawn_or_left_out(experiment, tmp_path):
    draw, runs, keys = CASES[experiment]
    (tmp_path / "runs").mkdir()
    rows = list(runs(tmp_path / "runs"))
    whole = {exhibit.stem for exhibit in draw(Made(rows))}
    assert whole
    smallest: list = []
    for name, part in [*parts_of(rows, keys), *((f"run {row['run_id']}", [row]) for row in rows[:: len(rows) // 6])]:
        try:
            found = draw(Made(pd.DataFrame(part)))
        except Exception as error:
            raise AssertionError(f"{experiment} with only {name}: {error!r}") from error
        assert {exhibit.stem for exhibit in found} <= whole
        assert not any(exhibit.table.empty for exhibit in found), name
        smallest = found if len(part) == 1 else smallest
    saves(smallest, tmp_path / "report")


def test_with_one_number_of_microbatches_nothing_is_drawn_against_it(tmp_path):
    rows = [made(tmp_path, name, 4, **{"config.device.per": ["row"]}) for name in ("gpipe", "1f1b")]
    for row in rows:
        row[LAUNCH] = 0
    assert m_sensitivity.exhibits(Made(rows)) == []


def test_one_latency_or_one_position_is_no_comparison(tmp_path):
    rows = [made(tmp_path, "gpipe", chunks, latency=0) for chunks in (4, 8)]
    assert [exhibit.stem for exhibit in hop_latency.exhibits(Made(rows))] == ["hop-latency-step-time"]
    skewed = {"config.partition.rank": 1.0, "config.partition.share": 0.75, "config.device.per": ["layer"]}
    rows = [made(tmp_path, "gpipe", 4, partition=[1, 3], **skewed)]
    stems = [exhibit.stem for exhibit in partition_skew.exhibits(Made(rows))]
    assert stems == ["partition-skew-utilisation", "partition-skew-throughput"]
