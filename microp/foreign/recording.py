"""Writes the steps of a trace as a run folder, which everything reads that reads runs."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby, pairwise
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
from microp.schedule import Partition, to_text
from microp.settings import (
    NEVER,
    DeviceSettings,
    EngineSettings,
    MlpSettings,
    SyncSettings,
    SyntheticSettings,
    TrackingSettings,
)
from microp.trace import Span, in_flight_peak

FOREIGN = "foreign"  # what microp did not make: the engine, the model


def step_rows(aligned: Aligned, lanes: Sequence[Lane]) -> list[list[StepRow]]:
    """Return the rows of all steps, each with one row per rank."""
    return [
        [
            _row(step, aligned.ranks[step][rank], list(own), lanes[rank])
            for rank, own in groupby(spans, lambda s: s.rank)
        ]
        for step, spans in aligned.spans.items()
    ]


def _row(step: int, row: RankStep, spans: Sequence[Span], lane: Lane) -> StepRow:
    lengths: dict[str, list[int]] = defaultdict(list)
    for span in spans:
        lengths[f"{span.stage}{span.op}"].append(span.end - span.start)
    return {
        **{"phase": "measured", "step": step, "rank": spans[0].rank, "replica": 0, "engine": FOREIGN, "loss": None},
        **{"began_ns": row.began, "ended_ns": row.ended},
        "ended": row.ended / 1e9 if lane.since_1970 else lane.file.stat().st_mtime,
        "step_ms": (row.ended - row.began) / 1e6,
        "pipeline_ms": (spans[-1].end - row.began) / 1e6,
        "optimizer_ms": row.optimizer / 1e6,
        "compute_ms": sum(map(sum, lengths.values())) / 1e6,
        "wait_ms": sum(after.start - span.end for span, after in pairwise(spans)) / 1e6,  # as engine=torch counts it
        **{"first_start_ns": spans[0].start, "last_end_ns": spans[-1].end},
        "action_ms": {name: mean(values) / 1e6 for name, values in lengths.items()},
        **{"recompute_ms": 0.0, "exposed_ms": 0.0, "overruns": 0, "work_ms": 0.0},  # a trace does not tell them apart
    }


def record(
    runs: Path,
    aligned: Aligned,
    rows: Sequence[Sequence[StepRow]],
    lanes: Sequence[Lane],
    about: Mapping[str, Any],
    name: str | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Write the run folder below `runs`, and return the attempt and its summary.

    Args:
        about: what `env.json` has besides: command and notes.
        name: the run's folder; None for `<schedule>-m<M>-k<K>-<hash of the times>`.

    Raises:
        WriteError: a file cannot be written.
    """
    schedule, last = aligned.schedule, list(aligned.spans)[-1]
    known_by = f"{to_text(schedule)}{[row['compute_ms'] for step in rows for row in step]}"
    digest = hashlib.sha256(known_by.encode()).hexdigest()
    attempt = new_attempt(runs, name or f"{schedule.name}-m{schedule.chunks}-k{len(schedule.ranks)}-{digest[:8]}")
    # 1. what readers need of a configuration, as far as a trace tells it; a stage counts as a layer
    device = DeviceSettings("cuda" if any(len(lane.kernels) for lane in lanes) else "cpu", 1)
    model, partition = MlpSettings(FOREIGN, schedule.stages, 8, "float32"), Partition((1,) * schedule.stages)
    others: Any = (
        schedule.chunks,
        len(rows),
        0,
        0.0,
        0,
        EngineSettings(FOREIGN, False),
        SyncSettings("flat", "library"),
    )
    data = SyntheticSettings("synthetic")
    job = Job(attempt.parent.name, schedule, partition, model, NEVER, data, device, "gloo", 0.0, *others)
    unknown = {group: {"name": FOREIGN} for group in ("partition", "checkpointing", "engine", "comms", "data")}
    config = {
        **{
            "ranks": job.ranks,
            "chunks": schedule.chunks,
            "replicas": 1,
            "steps": job.steps,
            "repeat": 0,
            "profile": None,
        },
        **{"schedule": {"name": schedule.name}, "model": {"name": FOREIGN, "layers": schedule.stages}, **unknown},
        "device": {"name": job.device.name, "threads": 1},
        "tracking": asdict(TrackingSettings(None, None, None, None, [], None, False).resolved()),
    }
    status = {"uid": digest[:12], **this_process(), "started": rows[0][0]["ended"], "ended": rows[-1][0]["ended"]}
    machine: dict[str, Any] = {"cores": None, "commit": None, "processor": "", "packages": {}, "gpus": []}
    write_json(attempt / "status.json", {**status, "status": "running", "message": None})
    write_text(attempt / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    write_json(attempt / "env.json", {**machine, "experiment": None, "overrides": [], "wandb_agent": {}, **about})
    # 2. its steps, and the trace of the last one
    write_schedule(attempt, schedule)
    for rank, spans in groupby(aligned.spans[last], lambda span: span.rank):
        recorder = RankRecorder(attempt, rank)
        for step in rows:
            recorder.step(step[rank])
        recorder.spans(last, spans)
        recorder.close()
    # 3. its numbers, without those of the job that a trace does not tell
    not_told = dict.fromkeys(("batch_size", "samples_per_s", "seed", "loss"))
    peaks = [peak / len(schedule.stages_of(rank)) for rank, peak in in_flight_peak(aligned.spans[last]).items()]
    summary = (
        summarise(replace(job, question_id=digest[:12]), attempt, "finished")
        | not_told
        | dict.fromkeys(("comms", "checkpointing"), FOREIGN)
    )
    summary["in_flight_peak"] = peaks
    write_json(attempt / "summary.json", summary)
    write_json(attempt / "status.json", {**status, "status": "finished", "message": None})
    return attempt, summary
