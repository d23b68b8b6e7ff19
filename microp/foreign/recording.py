"""Writes the steps of a trace as a run folder, which everything reads that reads runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from microp import records, settings
from microp.foreign.reading import Lane
from microp.foreign.steps import FOREIGN, RankStep, Traced
from microp.job import Job
from microp.schedule import Partition, to_text
from microp.trace import action_times, microbatches_in_flight


def step_rows(traced: Traced) -> list[list[Any]]:
    """Return the rows of all steps, each with one row per rank; a recomputation is in its backward."""
    return [[_row(step, *each) for each in zip(rows, traced.lanes, strict=True)] for step, rows in traced.steps.items()]


def _row(step: int, row: RankStep, lane: Lane) -> Any:
    times, began = action_times(row.spans), row.began
    wait = sum(later.start - span.end for span, later in pairwise(row.spans))  # as engine=torch counts it
    return {
        **{"recompute_ms": 0.0, "exposed_ms": 0.0, "overruns": 0, "work_ms": 0.0, "replica": 0, "loss": None},
        **times,
        **{"phase": "measured", "step": step, "rank": row.spans[0].rank, "engine": FOREIGN},
        **{"began_ns": began, "ended_ns": row.ended, "step_ms": (row.ended - began) / 1e6, "wait_ms": wait / 1e6},
        "pipeline_ms": (times["last_end_ns"] - began) / 1e6,
        "ended": row.ended / 1e9 if row.ended > 10**18 else lane.file.stat().st_mtime,  # seconds since 1970
        "optimizer_ms": row.optimizer / 1e6,
    }


def record(
    runs: Path, traced: Traced, rows: Sequence[Sequence[records.StepRow]], command: Sequence[str]
) -> tuple[Path, dict[str, Any]]:
    """Write the run folder below `runs`, and return the attempt and its summary; WriteError: that cannot be done.

    A run's name has a hash of its times: the same trace is not recorded again. `command` is what the user typed.
    """
    schedule, last, ranks = traced.schedule, max(traced.steps), len(traced.lanes)
    known_by = f"{to_text(schedule)}{[row['compute_ms'] for step in rows for row in step]}"
    uid = hashlib.sha256(known_by.encode()).hexdigest()[:12]
    run = f"{schedule.name}-m{schedule.chunks}-k{ranks}-{uid[:8]}"
    if known := records.finished(runs / run):
        return known, records.read_summary(known)
    attempt = records.new_attempt(runs, run)
    # 1. what readers need of a configuration, as far as a trace tells it; a stage counts as a layer
    tracking = asdict(settings.TrackingSettings(None, None, None, None, [], None, False).resolved())
    groups: dict[str, Any] = {"profile": None, "tracking": tracking, "steps": len(rows), "replicas": 1, "repeat": 0}
    groups |= {key: {"name": FOREIGN} for key in ("partition", "checkpointing", "engine", "comms", "data")}
    groups |= {"ranks": ranks, "chunks": schedule.chunks, "device": {"name": traced.device, "threads": 1}}
    groups |= {"schedule": {"name": schedule.name}, "model": {"name": FOREIGN, "layers": schedule.depth}}
    times = {"started": rows[0][0]["ended"], "ended": rows[-1][0]["ended"], "message": None}
    status = {"uid": uid, **records.this_process(), **times}
    machine = dict.fromkeys(("cores", "commit", "experiment")) | {"processor": "", "packages": {}, "gpus": []}
    records.write_json(attempt / "status.json", {**status, "status": "running"})
    records.write_text(attempt / "config.yaml", yaml.safe_dump(groups))
    about = {"command": command, "notes": traced.notes, "clocks": traced.clocks, "overrides": [], "wandb_agent": {}}
    records.write_json(attempt / "env.json", machine | about)
    # 2. its steps, and the trace of the last one
    records.write_schedule(attempt, schedule)
    for rank, row in enumerate(traced.steps[last]):
        recorder = records.RankRecorder(attempt, rank)
        for step in rows:
            recorder.step(step[rank])
        recorder.spans(last, row.spans)
        recorder.close()
    # 3. its numbers, without those of the job that a trace does not tell
    model, partition = settings.MlpSettings(FOREIGN, schedule.depth, 8, "float32"), Partition((1,) * schedule.depth)
    engine, sync = settings.EngineSettings(FOREIGN, False), settings.SyncSettings("flat", "library")
    trained: Any = (schedule.chunks, len(rows), 0, 0.0, 0, engine, sync, 1, None, uid)
    data, device = settings.SyntheticSettings("synthetic"), settings.DeviceSettings(traced.device, 1)
    job = Job(run, schedule, partition, model, settings.NEVER, data, device, "gloo", 0.0, *trained)
    summary = records.summarise(job, attempt, "finished")
    summary |= dict.fromkeys(("batch_size", "samples_per_s", "seed", "loss"))
    peaks = [float(peak) for peak in microbatches_in_flight(schedule, traced.spans[last])]
    summary |= {"comms": FOREIGN, "checkpointing": FOREIGN, "device": FOREIGN, "in_flight_peak": peaks}
    records.write_json(attempt / "summary.json", summary)
    records.write_json(attempt / "status.json", {**status, "status": "finished"})
    return attempt, summary
