"""Runs as they lie on disk, without having been run: for tests of what is listed and compared."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from configs import config

from microp.config import Config, make_job, to_yaml
from microp.job import Job
from microp.records import RankRecorder, new_attempt, read_json, write_json, write_schedule

NOON = 1_795_348_800.0  # 22 November 2026, 12:00 UTC
ENV = {"commit": "c0ffee", "processor": "a processor", "cores": 2, "gpus": [], "python": "3.11", "experiment": None}


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    return config(*overrides)


@cache
def _asked(overrides: tuple[str, ...]) -> tuple[Config, Job]:
    """The configuration and its job; Hydra, which takes long, composes once for all chunks and launches."""
    typed = dict(override.split("=") for override in overrides if override.startswith(("chunks=", "repeat=")))
    rest = tuple(override for override in overrides if override.split("=")[0] not in typed)
    asked = replace(_composed(rest), **{key: int(value) for key, value in typed.items()})
    return asked, make_job(asked)


def write_steps(attempt: Path, ranks: int, steps: int = 1) -> None:
    """Write the rows of measured steps, with what every reader needs."""
    clocks = {"began_ns": 0, "ended_ns": 50_000_000, "step_ms": 50.0, "pipeline_ms": 49.0, "optimizer_ms": 1.0}
    for rank in range(ranks):
        recorder = RankRecorder(attempt, rank)
        for step in range(steps):
            recorder.step({"phase": "measured", "step": step, "rank": rank, "loss": None, "engine": "microp", **clocks})
        recorder.close()


def store_run(
    outputs: Path,
    *overrides: str,
    step_ms: float = 50.0,
    spread: tuple[float, float] = (0.98, 1.05),
    status: str = "finished",
    minute: int = 0,
    message: str | None = None,
    env: dict[str, Any] | None = None,
    **summary: Any,
) -> str:
    """Write one attempt and return its run's id.

    `spread` has the p10 and p90 of its steps, relative to their median, and `minute` the minutes after noon at which it
    started. `env` and `summary` have what differs from ENV and from a usual summary. A `running` one has no summary.
    """
    asked, job = _asked(overrides)
    attempt = new_attempt(outputs / "runs", job.run_id)
    (attempt / "config.yaml").write_text(to_yaml(asked))
    write_json(attempt / "env.json", {**ENV, **(env or {})})
    write_json(attempt / "status.json", {"status": status, "message": message, "started": NOON + 60 * minute})
    write_schedule(attempt, job.schedule)
    if status == "running":
        return job.run_id
    write_steps(attempt, job.processes)
    done = status == "finished"
    numbers = {"schema_version": 2, "run_id": job.run_id, "question_id": job.question_id, "status": status}
    numbers |= {"schedule": job.schedule.name, "chunks": job.schedule.chunks, "ranks": job.ranks}
    steps = {"median": step_ms, "p10": spread[0] * step_ms, "p90": spread[1] * step_ms, "n": 10}
    numbers |= {"replicas": job.replicas, "step_ms": steps if done else None}
    numbers |= {"samples_per_s": job.batch_size / step_ms * 1e3 if done and job.counts_rows else None}
    numbers |= {"bubble": {"measured": 0.2 if done else None, "closed_form": 0.2}}
    numbers |= {"replayed": {"step_ms": 0.97 * step_ms if done else None, "bubble": 0.2}}
    numbers |= {"peak_memory_mib": [30.0 + job.schedule.chunks, 20.0] if done else None}
    numbers |= {"peak_activation_mib": [4.0, 2.0] if done else None}
    numbers |= {"loss": {"first": 4.0, "last": 3.5} if done else None}
    write_json(attempt / "summary.json", {**numbers, **summary})
    return job.run_id


def amend(file: Path, **changes: Any) -> None:
    """Change some values of a JSON record."""
    write_json(file, {**read_json(file), **changes})


def spoil(file: Path, how: str) -> None:
    """Damage a file: it is missing, empty, cut, no text, without keys, has another bit, or is what `how` says."""
    content = file.read_bytes()
    file.unlink()
    middle, cut = len(content) // 2, content[: len(content) // 3]
    other = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if content else b""
    left = {"empty": b"", "cut": cut, "not-text": b"\xff\xfe\x00" * len(content), "one bit": other}
    left["no-keys"] = b"[]\n" * content.count(b"\n")
    if how != "missing":
        file.write_bytes(left.get(how, how.encode()))
