"""Writes the steps of a trace as a run folder, which everything reads that reads runs.

::

    Aligned ── rows, spans of the last step ──► outputs/runs/<run>/attempt-<n>/  ── summarise ──► summary.json
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from microp.foreign.clocks import Aligned
from microp.foreign.reading import Lane
from microp.foreign.steps import RankStep
from microp.job import Job
from microp.records import (
    RankRecorder,
    StepRow,
    new_attempt,
    summarise,
    this_process,
    write_json,
    write_schedule,
    write_text,
)
from microp.schedule import Partition, Schedule, to_text
from microp.settings import (
    NEVER,
    DeviceSettings,
    EngineSettings,
    MlpSettings,
    SyncSettings,
    SyntheticSettings,
    TrackingSettings,
)
from microp.simulator import Simulated, replay_steps
from microp.trace import Span, in_flight_peak

FOREIGN = "foreign"  # the engine, and the model, of a run that microp did not make


def step_rows(aligned: Aligned, lanes: Sequence[Lane]) -> list[list[StepRow]]:
    """Return the rows of all steps, each with one row per rank."""
    return [
        [_row(step, rank, row, spans, lanes[rank]) for rank, (row, spans) in enumerate(_by_rank(aligned, step))]
        for step in aligned.spans
    ]


def _by_rank(aligned: Aligned, step: int) -> list[tuple[RankStep, list[Span]]]:
    parts: list[list[Span]] = [[] for _ in aligned.ranks[step]]
    for span in aligned.spans[step]:
        parts[span.rank].append(span)
    return list(zip(aligned.ranks[step], parts, strict=True))


def _row(step: int, rank: int, row: RankStep, spans: Sequence[Span], lane: Lane) -> StepRow:
    lengths: dict[str, list[int]] = defaultdict(list)
    for span in spans:
        lengths[f"{span.stage}{span.op}"].append(span.end - span.start)
    return {
        "phase": "measured",
        "step": step,
        "rank": rank,
        "replica": 0,
        "engine": FOREIGN,
        "loss": None,
        "began_ns": row.began,
        "ended_ns": row.ended,
        "ended": row.ended / 1e9 if lane.since_1970 else lane.file.stat().st_mtime,
        "step_ms": (row.ended - row.began) / 1e6,
        "pipeline_ms": (spans[-1].end - row.began) / 1e6,
        "optimizer_ms": row.optimizer / 1e6,
        "compute_ms": sum(map(sum, lengths.values())) / 1e6,
        "wait_ms": sum(after.start - span.end for span, after in pairwise(spans)) / 1e6,  # as engine=torch counts it
        "first_start_ns": spans[0].start,
        "last_end_ns": spans[-1].end,
        "action_ms": {name: mean(values) / 1e6 for name, values in lengths.items()},
        "recompute_ms": 0.0,  # a part of its backward, which a trace does not tell apart
        "exposed_ms": 0.0,
        "overruns": 0,
        "work_ms": 0.0,
    }


def replayed(schedule: Schedule, aligned: Aligned, rows: Sequence[Sequence[StepRow]]) -> Simulated:
    """Return the step simulated with its own times, in milliseconds; see `replay_steps`."""
    last = list(aligned.spans.values())[-1]
    return replay_steps(schedule, rows, last)


def record(
    outputs: Path,
    schedule: Schedule,
    aligned: Aligned,
    rows: Sequence[Sequence[StepRow]],
    lanes: Sequence[Lane],
    about: Mapping[str, Any],
    name: str | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Write the run folder, and return the attempt and its summary.

    Args:
        about: what `env.json` has besides: command, files, notes, clocks.
        name: the run's folder; None for `<schedule>-m<M>-k<K>-<hash of the times>`.

    Raises:
        WriteError: a file cannot be written.
    """
    text = to_text(schedule)
    digest = hashlib.sha256(f"{text}{[row['compute_ms'] for step in rows for row in step]}".encode()).hexdigest()
    run = name or f"{schedule.name}-m{schedule.chunks}-k{len(schedule.ranks)}-{digest[:8]}"
    attempt = new_attempt(outputs / "runs", run)
    on_gpu = any(len(lane.kernels) for lane in lanes)
    job = _job(run, schedule, "cuda" if on_gpu else "cpu", len(rows))
    status = {"uid": digest[:12], **this_process(), "started": rows[0][0]["ended"], "message": None}
    write_json(attempt / "status.json", {"status": "running", **status})
    write_text(attempt / "config.yaml", yaml.safe_dump(_config(job), sort_keys=False))
    write_json(attempt / "env.json", {**_environment(lanes), **about})
    write_schedule(attempt, schedule)
    last = list(aligned.spans)[-1]
    for rank, (_, spans) in enumerate(_by_rank(aligned, last)):
        recorder = RankRecorder(attempt, rank)
        for step in rows:
            recorder.step(step[rank])
        recorder.spans(last, spans)
        recorder.close()
    peaks = in_flight_peak(aligned.spans[last])
    summary = summarise(job, attempt, "finished") | {
        "model": FOREIGN,
        "comms": FOREIGN,
        "checkpointing": FOREIGN,
        "batch_size": None,  # a trace does not tell the rows
        "samples_per_s": None,
        "seed": None,
        "loss": None,
        "in_flight_peak": [peaks[rank] / len(schedule.stages_of(rank)) for rank in range(job.ranks)],
    }
    write_json(attempt / "summary.json", summary)
    write_json(
        attempt / "status.json", {"status": "finished", **status, "ended": max(rows[-1][0]["ended"], time.time())}
    )
    return attempt, summary


def _job(run: str, schedule: Schedule, device: str, steps: int) -> Job:
    """Return the job that `summarise` takes; a trace knows stages, and each counts as one layer."""
    stages = schedule.stages
    return Job(
        run_id=run,
        question_id=run,
        schedule=schedule,
        partition=Partition((1,) * stages),
        model=MlpSettings(FOREIGN, stages, 8, "float32"),
        checkpointing=NEVER,
        data=SyntheticSettings("synthetic"),
        device=DeviceSettings(device, 1),
        backend="gloo",
        timeout_s=60.0,
        batch_size=schedule.chunks,
        steps=steps,
        warmup_steps=0,
        learning_rate=0.0,
        seed=0,
        engine=EngineSettings(FOREIGN, False),
        sync=SyncSettings("flat", "library"),
    )


def _config(job: Job) -> dict[str, Any]:
    """Return what is known of a foreign run's configuration."""
    unknown = {"name": FOREIGN}
    return {
        **{"ranks": job.ranks, "chunks": job.schedule.chunks, "replicas": 1, "steps": job.steps, "repeat": 0},
        **{"schedule": {"name": job.schedule.name}, "model": {**unknown, "layers": job.model.layers}},
        **{"partition": unknown.copy(), "checkpointing": unknown.copy(), "engine": unknown.copy()},
        **{"device": {"name": job.device.name, "threads": 1}, "comms": unknown.copy(), "profile": None},
        "tracking": asdict(TrackingSettings(None, None, None, None, [], None, False)),
    }


def _environment(lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return the keys that readers need; what the trace does not tell of its machine is None."""
    return {
        **{"cores": None, "commit": None, "processor": "", "packages": {}, "gpus": []},
        **{"experiment": None, "overrides": [], "wandb_agent": {}},
        "files": list(dict.fromkeys(str(lane.file) for lane in lanes)),
    }
